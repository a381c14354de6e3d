"""Whatever can be compared on a split: arms, popularity, references; figures by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from experiments.arms import Arm, Split
from experiments.user_values import Values, spread_out
from server_app.references.popularity import Popularity
from server_app.report import SHOWN
from server_app.user_ranks import UserRanks

POPULARITY = "popularity"


@dataclass(frozen=True)
class Contender:
    """One row of a table."""

    label: str
    metrics: Mapping[int, Mapping[str, float]]
    """Figures by seed."""
    ranks: Mapping[int, UserRanks] = field(default_factory=dict)
    """By seed; seeds whose ranks were not kept are missing."""

    def mean(self, figure: str) -> float | None:
        """Over the seeds; None where one of them lacks the figure."""
        values = [metrics.get(figure) for metrics in self.metrics.values()]
        known = [value for value in values if value is not None]
        return fmean(known) if known and len(known) == len(values) else None

    def common(self, other: Contender, figure: str) -> tuple[int, ...]:
        """Seeds of which both have the figure."""
        both = self.metrics.keys() & other.metrics.keys()
        return tuple(
            seed
            for seed in sorted(both)
            if figure in self.metrics[seed] and figure in other.metrics[seed]
        )


def of_arm(arm: Arm) -> Contender:
    """An arm's figures and ranks."""
    return Contender(
        arm.label,
        {run.seed: run.result.metrics for run in arm.runs},
        {run.seed: run.ranks["model"] for run in arm.runs if "model" in run.ranks},
    )


def popularity_of(split: Split) -> Contender | None:
    """The popularity ranking as the split's runs have it, else as the references do."""
    runs = [run for arm in split.arms for run in arm.runs if run.result.popularity]
    if not runs:
        row = references_of(split, popularity=True)
        return Contender(POPULARITY, row[0].metrics, row[0].ranks) if row else None
    metrics = {run.seed: run.result.popularity or {} for run in reversed(runs)}
    ranks = {run.seed: run.ranks[POPULARITY] for run in runs if POPULARITY in run.ranks}
    return Contender(POPULARITY, dict(sorted(metrics.items())), ranks)


def references_of(split: Split, *, popularity: bool = False) -> list[Contender]:
    """The references by method; ``popularity``: that one alone, else all others."""
    return [
        Contender(
            method,
            {reference.row.seed: reference.row.metrics for reference in of},
            {r.row.seed: r.ranks for r in of if r.ranks is not None},
        )
        for method, of in split.references.items()
        if (method == Popularity.name) == popularity
    ]


def best_of(contenders: Sequence[Contender], figure: str) -> Contender | None:
    """The one with the highest mean; the first of equal ones."""
    known = [(one, mean) for one in contenders if (mean := one.mean(figure)) is not None]
    return max(known, key=lambda pair: pair[1])[0] if known else None


def figures_of(contenders: Sequence[Contender]) -> list[str]:
    """The figures of a results table that some contender has."""
    return [name for name in SHOWN if any(one.mean(name) is not None for one in contenders)]


def paired(
    one: Contender, other: Contender, figure: str, seeds: Sequence[int], num_users: int
) -> Values | None:
    """Difference by global index of user (num_users,), mean over ``seeds``; NaN where not ranked.

    None where a seed's ranks are missing on either side, or there is no seed.
    """
    differences = []
    for seed in seeds:
        if seed not in one.ranks or seed not in other.ranks:
            return None
        ours = spread_out(one.ranks[seed], figure, num_users)
        theirs = spread_out(other.ranks[seed], figure, num_users)
        if ours is None or theirs is None:
            return None
        differences.append(ours - theirs)
    return np.mean(differences, axis=0) if differences else None
