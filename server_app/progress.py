"""The progress of a run on a terminal, fed by the lines of ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping
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

from server_app.callbacks import Callback, RoundRecord

SHOWN = ("validation/sampled/hr@10", "test/sampled/hr@10")
"""The first of these that a round reports is shown."""


class RoundProgress(Callback):
    """A live bar on a terminal; elsewhere a line an evaluated round."""

    def __init__(self, label: str, rounds: int, console: Console) -> None:
        self._console, self._live = console, console.is_terminal
        self._label, self._rounds, self._bytes = label, rounds, 0
        self._ranked = ""
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not self._live,
        )
        self._task = self._bar.add_task(label, total=rounds, note="starting Flower and Ray")

    def __enter__(self) -> RoundProgress:
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
        self._bytes += record["bytes_up"] + record["bytes_down"]
        ranking = record["evaluation"] or {}
        name = next((name for name in SHOWN if name in ranking), None)
        if name is not None:
            self._ranked = f"{name.replace('/sampled/hr', ' HR')} {100 * ranking[name]:.1f}%"
        note = self._note(record)
        self._bar.update(self._task, completed=record["round"], note=note)
        if not self._live and name is not None:
            line = f"{self._label} round {record['round']}/{self._rounds}: {note}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _note(self, record: Mapping[str, Any]) -> str:
        seconds = record["seconds"]["train"]
        parts = [f"loss {record['train']['loss']:.4f}"] if "loss" in record["train"] else []
        parts += [self._ranked] if self._ranked else []
        parts += [f"{record['num_users'] / seconds:.0f} users/s"] if seconds > 0 else []
        return " · ".join([*parts, f"{self._bytes / 1e6:.1f} MB"])
