"""Differences between the contenders of a split, with intervals and tests."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from experiments.arms import Split
from experiments.contenders import (
    Contender,
    best_of,
    figures_of,
    of_arm,
    paired,
    popularity_of,
    references_of,
)
from experiments.significance import Interval, holm, seed_interval, signed_rank, user_intervals
from experiments.user_values import Values
from models.rng import Role, derive_rng

ALPHA = 0.05


@dataclass(frozen=True)
class Difference:
    """One contender's figure less another's, over the seeds that both have."""

    figure: str
    arm: str
    against: str
    kind: str
    """``baseline``, ``best`` federated arm, ``popularity`` or best ``reference``."""
    seeds: tuple[int, ...]
    mean: float
    over_seeds: Interval | None = None
    """Student's t interval; None for fewer than three seeds."""
    num_users: int = 0
    """Users behind what follows; 0 where ranks are missing, and then the rest is None."""
    over_users: Interval | None = None
    p: float | None = None
    p_holm: float | None = None
    """Adjusted over the differences of the same figure and kind."""

    @property
    def is_significant(self) -> bool:
        """At five per cent, after Holm's correction."""
        return self.p_holm is not None and self.p_holm < ALPHA


@dataclass(frozen=True)
class Standing:
    """Who is best at a figure among the federated arms, and who cannot be told from it."""

    best: str
    is_tested: bool
    """Whether every other arm could be tested against the best."""
    is_ahead: bool
    """Whether the best is significantly better than every other arm."""
    level: frozenset[str]
    """Arms that cannot be told from the best, and the best; empty where it is ahead or not
    everything is tested."""


@dataclass(frozen=True)
class Comparison:
    """All of a split."""

    arms: tuple[Contender, ...]
    popularity: Contender | None
    references: tuple[Contender, ...]
    figures: tuple[str, ...]
    differences: tuple[Difference, ...]
    standings: dict[str, Standing]

    def best_reference(self, figure: str) -> str | None:
        """Its label."""
        best = best_of(self.references, figure)
        return best.label if best else None


def compare(split: Split, baseline: str | None = None) -> Comparison:
    """Every arm with the best federated arm, with popularity and with the best reference.

    ``baseline``: label of an arm that every other one is compared with as well.
    """
    arms = [of_arm(arm) for arm in split.arms]
    base = next((arm for arm in arms if arm.label == baseline), None)
    popularity, references = popularity_of(split), references_of(split)
    figures = figures_of(arms)
    others = {"baseline": base, "popularity": popularity}
    pairs = [pair for figure in figures for pair in _pairs(figure, arms, others, references)]
    differences = corrected(_measured(pairs, split))
    standings = {
        figure: _standing(figure, best_of(arms, figure), arms, differences) for figure in figures
    }
    return Comparison(
        tuple(arms), popularity, tuple(references), tuple(figures), tuple(differences), standings
    )


Pair = tuple[str, str, Contender, Contender]
"""Figure, kind, and the two that are compared."""


def _pairs(
    figure: str,
    arms: Sequence[Contender],
    others: Mapping[str, Contender | None],
    references: Sequence[Contender],
) -> Iterator[Pair]:
    against = {
        "best": best_of(arms, figure),
        **others,
        "reference": best_of(references, figure),
    }
    for kind, other in against.items():
        for arm in arms if other else ():
            if arm is not other and arm.mean(figure) is not None:
                # The best comes first: what it is ahead by reads as a gain.
                one, two = (other, arm) if kind == "best" else (arm, other)
                yield figure, kind, one, two  # type: ignore[misc]


def _measured(pairs: Sequence[Pair], split: Split) -> list[Difference]:
    found, values = list[Difference](), list[Values | None]()
    for figure, kind, one, other in pairs:
        seeds = one.common(other, figure)
        if not seeds:
            continue
        by_seed = [one.metrics[seed][figure] - other.metrics[seed][figure] for seed in seeds]
        found.append(
            Difference(
                figure, one.label, other.label, kind, seeds, fmean(by_seed), seed_interval(by_seed)
            )
        )
        values.append(paired(one, other, figure, seeds, split.num_users))
    return _over_users(found, values, split)


def between(
    one: Contender, other: Contender, figure: str, kind: str, split: Split
) -> Difference | None:
    """One difference by itself; None without a seed in common."""
    return next(iter(corrected(_measured([(figure, kind, one, other)], split))), None)


def _over_users(
    differences: Sequence[Difference], values: Sequence[Values | None], split: Split
) -> list[Difference]:
    """The differences with what users say; those of the same users share their resamples."""
    found = list(differences)
    same = dict[bytes, list[int]]()
    for place, spread in enumerate(values):
        if spread is not None and np.count_nonzero(~np.isnan(spread)) > 1:
            same.setdefault(np.isnan(spread).tobytes(), []).append(place)
    for places in same.values():
        stacked = [spread[~np.isnan(spread)] for p in places if (spread := values[p]) is not None]
        rng = derive_rng(0, Role.REPORT, zlib.crc32(split.name.encode()))
        intervals = user_intervals(np.stack(stacked), rng)
        for place, interval, values_U in zip(places, intervals, stacked, strict=True):
            found[place] = replace(
                found[place],
                num_users=len(values_U),
                over_users=interval,
                p=signed_rank(values_U),
            )
    return found


def corrected(differences: Sequence[Difference]) -> list[Difference]:
    """With p values adjusted over the tested differences of the same figure and kind."""
    found, families = list(differences), dict[tuple[str, str], list[int]]()
    for place, one in enumerate(differences):
        if one.p is not None:
            families.setdefault((one.figure, one.kind), []).append(place)
    for places in families.values():
        adjusted = holm([p for place in places if (p := found[place].p) is not None])
        for place, p_holm in zip(places, adjusted, strict=True):
            found[place] = replace(found[place], p_holm=p_holm)
    return found


def _standing(
    figure: str, best: Contender | None, arms: Sequence[Contender], found: Sequence[Difference]
) -> Standing:
    if best is None:
        return Standing("", False, False, frozenset())
    others = {arm.label for arm in arms if arm is not best and arm.mean(figure) is not None}
    of = {d.against: d for d in found if (d.figure, d.kind) == (figure, "best")}
    tested = others <= {label for label, one in of.items() if one.p_holm is not None}
    behind = {label for label, one in of.items() if one.is_significant and one.mean > 0}
    ahead = bool(others) and tested and others <= behind
    level = others - behind if tested and others and not ahead else set()
    return Standing(best.label, tested, ahead, frozenset(level | {best.label} if level else ()))
