"""A sweep that was asked for, made: plan, work, and what is said at the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path

from conf.tree import remarks
from experiments.sweep import folder as notes
from experiments.sweep.command import Request, how_to_go_on, say
from experiments.sweep.jobs import Job, planned, replanned
from experiments.sweep.making import Options, Plan, make
from experiments.sweep.reference_tasks import checked_methods
from experiments.sweep.reference_tasks import reference_tasks as reference_tasks_of
from experiments.sweep.run_task import RunTask
from experiments.sweep.selection import check_select, choices, choosing, reported
from experiments.sweep.spec import Select
from server_app.cli_common import CONSOLE
from server_app.errors import ServerError
from server_app.lock import locked
from server_app.report import runs_table
from server_app.results import load_result


def execute(request: Request, options: Options) -> None:
    """Make what is missing of a sweep, and show what came out.

    Raises:
        ConfigError: a job that cannot be run; nothing has started.
        ServerError: jobs failed; they are listed, the others are complete.
        InterruptedError: Ctrl-C; the message says how to go on.

    """
    notes.check_free(request.folder)
    jobs = _jobs(request)
    select = request.spec.select
    if select is not None:
        check_select(select, jobs)
    shown = jobs if select is None else reported(jobs, select)
    methods = checked_methods(request.spec.references)
    tasks_beside = reference_tasks_of([j.config for j in shown], methods, request.folder)
    request.folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(request.folder):
            _remark(request, jobs)
            notes.write_asked(request.folder, request.spec, jobs)
            wanted = jobs if select is None else _chosen(jobs, select, request.folder, options)
            plan = Plan(_runs(wanted, options), *tasks_beside)
            failed = make(plan, request.folder, options)
    except KeyboardInterrupt:
        raise InterruptedError(f"stopped; {how_to_go_on(request.folder)}") from None
    _show(plan, request.folder, () if select is None else select.seeds)
    if failed:
        for label, reason in failed.items():
            say(f"failed: {label}: {reason}", style="red")
        raise ServerError(f"{len(failed)} of {len(plan.tasks)} jobs failed")


def _runs(jobs: Sequence[Job], options: Options) -> list[RunTask]:
    return [RunTask(job, slim=options.slim) for job in jobs]


def _chosen(jobs: Sequence[Job], select: Select, folder: Path, options: Options) -> list[Job]:
    """The jobs that choose, which are made here, and those of the settings that they choose."""
    first = choosing(jobs, select)
    seeds = ", ".join(map(str, select.seeds))
    say(f"First {len(first)} runs of seeds {seeds}, which choose {' and '.join(select.tune)}")
    make(Plan(_runs(first, options), (), ()), folder, options)
    chosen = choices(jobs, select, lambda job: _figure(RunTask(job), select.by))
    for choice in chosen:
        say(f"Chosen for {choice.line}", style=None if choice.jobs else "yellow")
    return [*first, *(job for choice in chosen for job in choice.jobs)]


def _figure(task: RunTask, name: str) -> float | None:
    """A figure of a complete run.

    Raises:
        ServerError: when the run has no such figure.

    """
    if not task.is_made():
        return None
    metrics = load_result(task.job.folder).metrics
    if name not in metrics:
        known = ", ".join(key for key in sorted(metrics) if key.startswith("validation/"))
        raise ServerError(f"select.by: {task.label} has no figure {name!r}, but {known}")
    return metrics[name]


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


def _show(plan: Plan, folder: Path, choosing_seeds: Collection[int]) -> None:
    """The complete runs but those that chose, a row an arm; what references lack; where it is."""
    shown = [task for task in plan.runs if task.job.config.seed not in choosing_seeds]
    complete = [task for task in shown if task.is_made()]
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
