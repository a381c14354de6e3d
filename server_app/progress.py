"""The progress of a run on a terminal, fed by the lines of ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from server_app.callbacks import Callback, RoundRecord, epsilon_text

SHOWN = ("validation/sampled/hr@10", "test/sampled/hr@10")
"""The first of these that a round reports is shown."""
SHORT = {"validation": "val", "test": "test"}
WIDE = 100
"""Columns of a terminal below which the bar is short and words are abbreviated."""
CLOCK = len("0:00:00")


class RoundProgress(Callback):
    """A live bar on a terminal; elsewhere, and on a dumb terminal, a line an evaluated round.

    ``earlier`` are the lines of ``metrics.jsonl`` of the part that a resumed run continues.
    """

    def __init__(
        self,
        label: str,
        rounds: int,
        console: Console,
        earlier: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self._console, self._live = console, console.is_interactive
        self._label, self._rounds = label, rounds
        self._bar_width = 30 if console.width >= WIDE else 12
        self._bytes: dict[int, int] = {}
        self._ranked: tuple[str, float] | None = None
        self._bar = Progress(
            BarColumn(bar_width=self._bar_width),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not self._live,
        )
        self._task = self._bar.add_task(label, total=rounds, note="starting")
        for record in earlier:
            self._count(record)

    def __enter__(self) -> RoundProgress:
        if self._live:
            self._console.print(self._label, style="bold", markup=False, highlight=False)
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def on_round(self, record: RoundRecord) -> None:
        """Follow a run of this process."""
        self.update(asdict(record))

    def update(self, record: Mapping[str, Any]) -> None:
        """Show one line of ``metrics.jsonl``."""
        evaluated, number = self._count(record), record["round"]
        if self._live:
            note = self._fitted(self._parts(record))
            self._bar.update(self._task, completed=number, note=note)
        elif evaluated:
            note = " · ".join(self._parts(record))
            line = f"{self._label} round {number}/{self._rounds}: {note}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _count(self, record: Mapping[str, Any]) -> bool:
        """Add a round's bytes and ranking to what is shown; whether it has a ranking."""
        # By round: a resumed run trains those after its checkpoint again.
        self._bytes[record["round"]] = record["bytes_up"] + record["bytes_down"]
        ranking = record["evaluation"] or {}
        name = next((name for name in SHOWN if name in ranking), None)
        if name is not None:
            self._ranked = name.split("/")[0], ranking[name]
        return name is not None

    def _parts(self, record: Mapping[str, Any]) -> list[str]:
        """Ranking, loss, traffic and speed, the most wanted first."""
        parts = []
        if self._ranked is not None:
            items, value = self._ranked
            short = self._live and self._console.width < WIDE
            parts.append(f"{SHORT[items] if short else items} HR@10 {100 * value:.1f}%")
        if epsilon := epsilon_text(record.get("privacy")):
            parts.append(epsilon)
        if "loss" in record["train"]:
            parts.append(f"loss {record['train']['loss']:.4f}")
        sent = sum(n for number, n in self._bytes.items() if number <= record["round"])
        parts.append(f"{sent / 1e6:.1f} MB")
        if (secure := record.get("secagg")) is not None:
            extra = secure["bytes_up"] + secure["bytes_down"]
            parts.append(f"secagg {secure['seconds']:.2f} s {extra / 1e6:.2f} MB")
        seconds = record["seconds"]["train"]
        return [*parts, f"{record['num_users'] / seconds:.0f} users/s"] if seconds > 0 else parts

    def _fitted(self, parts: list[str]) -> str:
        """As many parts as the terminal has room for beside bar, round and clocks."""
        room = (
            self._console.width - self._bar_width - 2 * len(str(self._rounds)) - 1 - 2 * CLOCK - 4
        )
        while len(parts) > 1 and len(" · ".join(parts)) > room:
            parts = parts[:-1]
        return " · ".join(parts)
