"""The two stages of a sweep that chooses settings: seeds that choose, then the others.

Values of the tuned settings are compared on the tuning seeds alone, so no more than the chosen
value of each arm is made for the seeds that are reported.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from conf.build import ConfigError
from experiments.sweep.jobs import Job, result_settings
from experiments.sweep.spec import Select
from experiments.tuning import best_setting, setting_name

Figure = Callable[[Job], float | None]
"""The measure of a complete run; None where the run is not complete."""


@dataclass(frozen=True)
class Chosen:
    """The setting that an arm is reported with."""

    jobs: tuple[Job, ...]
    """Of the seeds that did not choose; empty where no setting has all runs that choose."""
    line: str
    """What was chosen, of what."""


def check_select(select: Select, jobs: Sequence[Job]) -> None:
    """Refuse a choice that these jobs do not allow.

    Raises:
        ConfigError: one line.

    """
    if not select.tune or not select.seeds:
        raise ConfigError("select needs settings in tune and seeds in seeds")
    for key in select.tune:
        if lacking := [job for job in jobs if key not in result_settings(job.config)]:
            raise ConfigError(f"select.tune: {lacking[0].label} has no setting {key}")
    if not select.by.startswith("validation/"):
        raise ConfigError(f"select.by must be a validation figure, got {select.by!r}")
    for job in jobs:
        if not job.config.protocol.validation:
            raise ConfigError(f"select.by: {job.label} holds out no validation items")
    _check_seeds(select, {job.config.seed for job in jobs})


def _check_seeds(select: Select, seeds: set[int]) -> None:
    if missing := sorted(set(select.seeds) - seeds):
        raise ConfigError(f"select.seeds: no job has seed {missing[0]}")
    if not seeds - set(select.seeds):
        raise ConfigError("select.seeds: all seeds choose, none is left to report")


def choosing(jobs: Sequence[Job], select: Select) -> list[Job]:
    """The jobs of the first stage."""
    return [job for job in jobs if job.config.seed in select.seeds]


def reported(jobs: Sequence[Job], select: Select) -> list[Job]:
    """The jobs of the other seeds, of any setting."""
    return [job for job in jobs if job.config.seed not in select.seeds]


def choices(jobs: Sequence[Job], select: Select, figure: Figure) -> list[Chosen]:
    """For each arm the setting with the highest mean of the measure over the tuning seeds.

    A setting without a figure of every tuning seed is not tried; ties go to the first by name,
    as in a report.
    """
    arms = dict[str, list[Job]]()
    for job in jobs:
        arms.setdefault(_arm(job, select), []).append(job)
    return [_choice(of, select, figure) for of in arms.values()]


def _arm(job: Job, select: Select) -> str:
    settings = result_settings(job.config)
    left = {k: v for k, v in settings.items() if k not in {"seed", "name", *select.tune}}
    return json.dumps(left, sort_keys=True)


def _choice(jobs: Sequence[Job], select: Select, figure: Figure) -> Chosen:
    by_setting = dict[str, list[Job]]()
    for job in jobs:
        name = setting_name(result_settings(job.config), select.tune)
        by_setting.setdefault(name, []).append(job)
    figures = {name: [figure(j) for j in choosing(of, select)] for name, of in by_setting.items()}
    whole = {
        name: [value for value in values if value is not None]
        for name, values in figures.items()
        if values and None not in values
    }
    if not whole:
        return Chosen((), f"{jobs[0].arm}: nothing is chosen, no setting has all runs that choose")
    best = best_setting(whole)
    arm = by_setting[best][0].arm
    return Chosen(tuple(reported(by_setting[best], select)), _line(arm, best, whole, select.by))


def _line(arm: str, best: str, figures: Mapping[str, Sequence[float]], by: str) -> str:
    tried = ", ".join(
        f"{name} {statistics.fmean(values):.4f}" for name, values in sorted(figures.items())
    )
    return f"{arm}: {best} by the mean of {by} ({tried})"
