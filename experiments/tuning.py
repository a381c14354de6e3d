"""Settings chosen on validation, so that every arm is compared at its own best."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conf.tree import ConfigError
from experiments.collect import Run

MEASURES = ("validation/full/ndcg@10", "validation/sampled/ndcg@10", "validation/sampled/hr@10")
"""What is maximised unless it is said: the first of these that all runs in question have."""


@dataclass(frozen=True)
class Tuning:
    """Which settings are chosen, by which seeds."""

    keys: tuple[str, ...] = ()
    """Dotted keys, such as ``strategy.server_lr``."""
    seeds: tuple[int, ...] = ()
    """Seeds that choose and are then not reported; empty: all seeds choose and are reported."""
    by: str | None = None
    """What is maximised; None: the first of ``MEASURES`` that there is."""


def setting_name(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The values of these settings, such as ``strategy.server_lr=0.01``."""
    return " ".join(f"{key}={settings[key]}" for key in keys)


def best_setting(figures: Mapping[str, Sequence[float]]) -> str:
    """The name with the highest mean; ties go to the first by name."""
    means = {name: statistics.fmean(values) for name, values in sorted(figures.items())}
    return max(means, key=lambda name: means[name])


@dataclass(frozen=True)
class Choice:
    """The runs reported, and what they were chosen from."""

    runs: tuple[Run, ...]
    setting: str = ""
    """The chosen setting, such as ``strategy.server_lr=0.01``."""
    measure: str = ""
    tried: tuple[tuple[str, float], ...] = ()
    """Each setting with its mean measure."""


def chosen(
    tried: Sequence[tuple[Run, ...]], tuning: Tuning, split: str, left_out: dict[str, str]
) -> Choice:
    """The runs of the best of the settings tried, each a tuple of runs; ties to the first by name.

    A setting that lacks a tuning seed is not tried, and one without other seeds has no runs to
    report; both are noted in ``left_out``.

    Raises:
        ConfigError: when the runs have no validation measure in common.

    """
    if not tuning.keys:
        return Choice(tried[0])
    if not all(key in run.settings for key in tuning.keys for runs in tried for run in runs):
        return Choice(tuple(run for runs in tried for run in _reported(runs, tuning)))
    whole = {
        setting_name(runs[0].settings, tuning.keys): runs
        for runs in tried
        if _is_whole(runs, tuning, left_out)
    }
    if not whole:
        return Choice(())
    judging = {name: _judging(runs, tuning) for name, runs in sorted(whole.items())}
    measure = _measure(list(judging.values()), tuning, split)
    figures = {
        name: [run.result.metrics[measure] for run in runs] for name, runs in judging.items()
    }
    best = best_setting(figures)
    runs = _reported(whole[best], tuning)
    if not runs:
        left_out |= {run.result.name: "was used for tuning alone" for run in whole[best]}
    means = tuple((name, statistics.fmean(values)) for name, values in figures.items())
    return Choice(runs, best, measure, means)


def _is_whole(runs: Sequence[Run], tuning: Tuning, left_out: dict[str, str]) -> bool:
    lacking = set(tuning.seeds) - {run.seed for run in runs}
    for run in runs if lacking else ():
        seeds = ", ".join(str(seed) for seed in sorted(lacking))
        left_out[run.result.name] = f"its setting has no run of tuning seed {seeds}"
    return not lacking


def _judging(runs: Sequence[Run], tuning: Tuning) -> list[Run]:
    return [run for run in runs if not tuning.seeds or run.seed in tuning.seeds]


def _reported(runs: Sequence[Run], tuning: Tuning) -> tuple[Run, ...]:
    return tuple(run for run in runs if run.seed not in tuning.seeds)


def _measure(tried: Sequence[Sequence[Run]], tuning: Tuning, split: str) -> str:
    asked = MEASURES if tuning.by is None else (tuning.by,)
    for measure in asked:
        if all(measure in run.result.metrics for runs in tried for run in runs):
            return measure
    named = "no validation figures" if tuning.by is None else f"no {tuning.by} in every run"
    raise ConfigError(f"{split} has {named} for --tune to choose by")
