"""The tasks of a sweep, and doing those that are missing."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.sweep import folder as notes
from experiments.sweep.command import say
from experiments.sweep.pool import Ended, Event, work
from experiments.sweep.progress import SweepProgress
from experiments.sweep.reference_tasks import ReferenceTask, SettingsTask
from experiments.sweep.run_task import RunTask
from server_app.cli_common import CONSOLE
from server_app.concurrency import cores


@dataclass(frozen=True)
class Options:
    """How a sweep is made; nothing of it changes a result."""

    processes: int | None = None
    retry_failed: bool = False
    slim: bool = False


@dataclass(frozen=True)
class Plan:
    """All tasks of a sweep."""

    runs: Sequence[RunTask]
    settings: Sequence[SettingsTask]
    references: Sequence[ReferenceTask]

    @property
    def tasks(self) -> list[RunTask | SettingsTask | ReferenceTask]:
        """In the order of work: references wait for the settings that are chosen for them."""
        return [*self.settings, *self.runs, *self.references]


def make(plan: Plan, folder: Path, options: Options) -> dict[str, str]:
    """Do what is missing; returns the failures' reasons by label."""
    made = {task.label for task in plan.tasks if task.is_made()}
    failed = {} if options.retry_failed else _known_failures(plan, made, folder)
    todo = [task for task in plan.tasks if task.label not in made | failed.keys()]
    if made or failed:
        say(f"{len(made)} of {len(plan.tasks)} jobs are complete already")
    if not todo:
        return failed
    with SweepProgress(todo, len(made), CONSOLE) as progress:
        for event in _events(plan, todo, folder, options):
            progress.show(event)
            failed |= _noted(event, folder)
    return failed


def _known_failures(plan: Plan, made: Collection[str], folder: Path) -> dict[str, str]:
    missing = [task for task in plan.tasks if task.label not in made]
    reasons = {task.label: notes.known_failure(folder, task) for task in missing}
    return {label: f"{why} (--retry-failed)" for label, why in reasons.items() if why is not None}


def _events(
    plan: Plan,
    todo: Sequence[RunTask | SettingsTask | ReferenceTask],
    folder: Path,
    options: Options,
) -> Iterator[Event]:
    """What happens while the tasks are done; splits come last, when their settings are chosen."""
    first = [_prepared(task, folder) for task in todo if not isinstance(task, ReferenceTask)]
    last = [task for task in todo if isinstance(task, ReferenceTask)]
    processes = options.processes or _fitting(plan)
    log = folder / notes.LOG
    return itertools.chain(work(first, processes, log), work(last, processes, log))


def _prepared(task: RunTask | SettingsTask, folder: Path) -> RunTask | SettingsTask:
    if isinstance(task, RunTask) and notes.failed_for_good(folder, task):
        return dataclasses.replace(task, anew=True)
    return task


def _noted(event: Event, folder: Path) -> dict[str, str]:
    """Keep or forget a failure; the reason by label where there is one."""
    if not isinstance(event, Ended) or event.failure is None:
        notes.forget_failure(folder, event.task)
        return {}
    notes.write_failure(folder, event.task, event.failure)
    return {event.task.label: event.failure.reason}


def _fitting(plan: Plan) -> int:
    """Runs of this sweep that have cores of their own; at least one."""
    each = [
        task.job.config.engine.threads
        * task.job.config.engine.workers
        * (task.job.config.federation.workers or 1)
        for task in plan.runs
    ]
    return max(1, cores() // max(each))
