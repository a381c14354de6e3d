"""The progress of a sweep: a live bar over its jobs, or a line a finished job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from experiments.sweep.pool import Ended, Event
from experiments.sweep.tasks import Task
from server_app.progress import WIDE

SHOWN = 4
"""Tasks in the works that are named at once."""
SPEED_S = 600.0
"""The time left follows from the speed of the last ten minutes: jobs differ in theirs."""


class SweepProgress:
    """Follows tasks; the time left is told by rounds, of which a task in the works has some."""

    def __init__(self, tasks: Sequence[Task], kept: int, console: Console) -> None:
        """``kept``: tasks that were done before."""
        self._console, self._live = console, console.is_interactive
        self._count, self._total, self._failed = kept, kept + len(tasks), 0
        self._rounds: dict[str, int] = {}
        self._begun: dict[str, float] = {}
        self._sizes = {task.label: task.size for task in tasks}
        columns: list[ProgressColumn] = [
            TextColumn("{task.fields[jobs]}"),
            BarColumn(bar_width=30 if console.width >= WIDE else 12),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        ]
        self._bar = Progress(
            *columns, console=console, disable=not self._live, speed_estimate_period=SPEED_S
        )
        work = sum(self._sizes.values())
        self._task = self._bar.add_task("", total=work, jobs=self._jobs(), note="starting")

    def __enter__(self) -> SweepProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def show(self, event: Event) -> None:
        """A task has begun, has done rounds, or is over."""
        label, line = event.task.label, ""
        if isinstance(event, Ended):
            line = self._end(event, time.monotonic() - self._begun.pop(label, time.monotonic()))
        else:
            self._begun.setdefault(label, time.monotonic())
            self._rounds[label] = event.rounds
        self._bar.update(
            self._task, completed=sum(self._rounds.values()), jobs=self._jobs(), note=self._note()
        )
        if line:
            self._console.print(Text(line + self._left()), highlight=False, soft_wrap=True)

    def _end(self, event: Ended, seconds: float) -> str:
        """Count a task that is over; what to say of it, nothing where the bar says it."""
        label = event.task.label
        self._rounds[label] = self._sizes[label]
        self._count += event.failure is None
        self._failed += event.failure is not None
        said = f"done in {seconds:.1f} s"
        if event.failure is not None:
            said = f"failed: {event.failure.reason}"
        elif self._live:
            return ""
        return f"[{self._count + self._failed}/{self._total}] {label}: {said}"

    def _left(self) -> str:
        """The time left, where there is no bar that shows it."""
        seconds = self._bar.tasks[0].time_remaining
        if self._live or not seconds:
            return ""
        return f", about {timedelta(seconds=round(seconds))} left"

    def _jobs(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._count}/{self._total} jobs{failed}"

    def _note(self) -> str:
        works = [f"{label} {self._rounds[label]}/{self._sizes[label]}" for label in self._begun]
        more = f" and {len(works) - SHOWN} more" if len(works) > SHOWN else ""
        return " · ".join(works[:SHOWN]) + more
