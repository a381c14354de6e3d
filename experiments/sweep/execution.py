"""A sweep that was asked for, made: plan, work, and what is said at the end."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.tree import remarks
from experiments.sweep import folder as notes
from experiments.sweep.command import Request, how_to_go_on, say
from experiments.sweep.jobs import Job, planned, replanned
from experiments.sweep.pool import Ended, Event, work
from experiments.sweep.progress import SweepProgress
from experiments.sweep.reference_tasks import ReferenceTask, SettingsTask, checked_methods
from experiments.sweep.reference_tasks import reference_tasks as reference_tasks_of
from experiments.sweep.run_task import RunTask
from server_app.cli_common import CONSOLE
from server_app.concurrency import cores
from server_app.errors import ServerError
from server_app.lock import locked
from server_app.report import runs_table
from server_app.results import load_result


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


def execute(request: Request, options: Options) -> None:
    """Make what is missing of a sweep, and show what came out.

    Raises:
        ConfigError: a job that cannot be run; nothing has started.
        ServerError: jobs failed; they are listed, the others are complete.
        InterruptedError: Ctrl-C; the message says how to go on.

    """
    notes.check_free(request.folder)
    jobs = _jobs(request)
    methods = checked_methods(request.spec.references)
    settings, references = reference_tasks_of([j.config for j in jobs], methods, request.folder)
    runs = [RunTask(job, slim=options.slim) for job in jobs]
    plan = Plan(runs, settings, references)
    request.folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(request.folder):
            _remark(request, jobs)
            notes.write_asked(request.folder, request.spec, jobs)
            failed = _make(plan, request.folder, options)
    except KeyboardInterrupt:
        raise InterruptedError(f"stopped; {how_to_go_on(request.folder)}") from None
    _show(plan, request.folder)
    if failed:
        for label, reason in failed.items():
            say(f"failed: {label}: {reason}", style="red")
        raise ServerError(f"{len(failed)} of {len(plan.tasks)} jobs failed")


def _jobs(request: Request) -> list[Job]:
    if request.asked is not None:
        return replanned(request.asked, request.folder, Path.cwd())
    return planned(request.spec.products(), request.folder, Path.cwd())


def _remark(request: Request, jobs: Sequence[Job]) -> None:
    for remark in dict.fromkeys(text for job in jobs for text in remarks(job.config)):
        say(f"Note: {remark}", style="yellow")
    if others := notes.left_over(request.folder, jobs):
        named = ", ".join([*others[:3], *(["…"] if len(others) > 3 else [])])
        say(
            f"Note: {request.folder} also holds {len(others)} runs that this sweep does not ask "
            f"for ({named}); they stay as they are",
            style="yellow",
        )


def _make(plan: Plan, folder: Path, options: Options) -> dict[str, str]:
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


def _show(plan: Plan, folder: Path) -> None:
    """The complete runs, a row an arm; what references lack; where it all is."""
    complete = [task for task in plan.runs if task.is_made()]
    # The table's rows are strategies; here an arm is what is compared.
    results = [
        dataclasses.replace(load_result(task.job.folder), strategy=task.job.arm)
        for task in complete
    ]
    if results:
        CONSOLE.print(runs_table(results))
    left_out: dict[str, str] = {}
    for task in plan.references:
        left_out |= task.left_out() if task.is_made() else {}
    for name, why in left_out.items():
        say(f"Reference {name} is left out: {why}", style="yellow")
    say(f"Results: {folder}")
