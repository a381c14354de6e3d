"""UNION: updates that draw item embeddings together, or apart, unlike the others are left out.

Source: Yu et al. (AAAI 2023, arXiv 2212.05399), its server side. For each update the server makes
the step that it would make of this one alone, and takes the mean distance of item embeddings
after it, over pairs of ``items`` drawn rows. These numbers, scaled to 0..1, are one group or two
by the gap statistic (Tibshirani, Walther & Hastie 2001). The smaller of two groups is left out if
the statistic says two, or if it is no larger than the number of malicious updates expected.
(The contrastive task of the paper's client side is not here.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from models.rng import Role, derive_rng
from models.types import IntArray
from server_app.defences.base import Expecting, Mask, item_rows, without
from strategies.by_user import UserUpdates
from strategies.defence import Scene, Verdict

Numbers = npt.NDArray[np.float64]
LEAST = 3
TINY = 1e-12
"""Sums of squares below this count as this: their logarithm stays finite."""


@dataclass(frozen=True)
class Union(Expecting):
    """Users whose update has an unusual effect on the spread of items are left out."""

    items: int = 500
    """Rows whose distances are taken, drawn anew each round, without replacement."""
    references: int = 50
    """Uniform samples that the gap statistic compares with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.items < 2 or self.references < 2:
            raise ValueError("items and references must be at least 2")

    def combined(self, updates: UserUpdates, scene: Scene) -> Verdict:
        """The sum of the larger group."""
        rng = derive_rng(scene.strategy.seed, Role.DEFENCE, scene.round)
        scaled_U = scaled(self.spreads(updates, scene, rng))
        small_U = smaller_group(scaled_U)
        two = len(updates) >= LEAST and has_two_groups(scaled_U, self.references, rng)
        few = 0 < small_U.sum() <= self.expected(len(updates))
        verdict = without(updates, scene, ~small_U if two or few else np.ones_like(small_U))
        return Verdict(verdict.update, verdict.flagged_U, {"two_groups": float(two)})

    def spreads(self, updates: UserUpdates, scene: Scene, rng: np.random.Generator) -> Numbers:
        """Mean distance (U,) of drawn item rows after the step of each update alone.

        Raises:
            ValueError: for a strategy whose users do not change item embeddings.

        """
        names = sorted(updates.tables)
        if not names:
            raise ValueError("union looks at item embeddings, and the updates have none")
        num_items = len(scene.shared[names[0]])
        drawn = rng.choice(num_items, size=min(self.items, num_items), replace=False)
        spreads = []
        for place in range(len(updates)):
            alone = updates.of(place, scene.shared)
            stepped, _ = scene.strategy.server_update(scene.shared, alone, scene.server_state)
            rows_SD = item_rows(stepped, names, np.sort(drawn)).double()
            spreads.append(float(torch.pdist(rows_SD).mean()))
        return np.array(spreads)


def scaled(values_U: Numbers) -> Numbers:
    """From 0 for the least to 1 for the greatest; all 0 where they are equal."""
    span = values_U.max() - values_U.min()
    return (values_U - values_U.min()) / span if span > 0 else np.zeros_like(values_U)


def smaller_group(values_U: Numbers) -> Mask:
    """Whether each value is in the smaller of the two groups that lie closest in themselves.

    Of two groups of the same size the upper one; of equal values nobody.
    """
    out = np.zeros(len(values_U), dtype=bool)
    order_U, cut = _best_cut(values_U)
    if cut:
        out[order_U[:cut] if cut < len(values_U) - cut else order_U[cut:]] = True
    return out


def has_two_groups(values_U: Numbers, references: int, rng: np.random.Generator) -> bool:
    """Whether the gap statistic prefers two groups to one: Gap(1) < Gap(2) − s₂."""
    one, two = _log_sums(values_U)
    drawn = np.array([_log_sums(rng.random(len(values_U))) for _ in range(references)])
    gap_one, gap_two = drawn.mean(0) - (one, two)
    error = float(drawn[:, 1].std() * np.sqrt(1 + 1 / references))
    return bool(gap_one < gap_two - error)


def _log_sums(values_U: Numbers) -> tuple[float, float]:
    """Logarithms of the sums of squares around one mean and around the means of two groups."""
    order_U, cut = _best_cut(values_U)
    ordered = values_U[order_U]
    halves = _squares(ordered[:cut]) + _squares(ordered[cut:])
    return float(np.log(max(_squares(ordered), TINY))), float(np.log(max(halves, TINY)))


def _best_cut(values_U: Numbers) -> tuple[IntArray, int]:
    """Ascending order, and how many of the least make the best lower group; 0: all are equal."""
    order_U = np.argsort(values_U, kind="stable")
    ordered, count = values_U[order_U], len(values_U)
    if count < 2 or ordered[0] == ordered[-1]:
        return order_U, 0
    sums = [_squares(ordered[:cut]) + _squares(ordered[cut:]) for cut in range(1, count)]
    return order_U, 1 + int(np.argmin(sums))


def _squares(values: Numbers) -> float:
    return float(((values - values.mean()) ** 2).sum()) if len(values) else 0.0
