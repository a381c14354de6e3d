"""Intervals and tests for differences: over users, and over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from experiments.user_values import Values

Interval = tuple[float, float]

LEVEL = 0.95
RESAMPLES = 9_999
BATCH = 500
"""Resamples drawn at once: what bounds the memory."""
LEAST_SEEDS = 3
ZERO_METHOD = "pratt"
"""Users without a difference take part in ranking the sizes of differences, and are then left
out (Pratt, 1959): more careful than leaving them out first, where most users have none."""


def user_intervals(values_KU: Values, rng: np.random.Generator) -> list[Interval]:
    """Percentile bootstrap intervals of the K means over users, all from the same resamples."""
    num_users = values_KU.shape[1]
    if num_users < 2:
        return [(float("nan"), float("nan"))] * len(values_KU)

    def means(drawn_BU: Any, axis: int = -1) -> Values:
        """Means (K, B) by how often each user was drawn."""
        rows_BU = np.atleast_2d(drawn_BU)
        offsets_B1 = num_users * np.arange(len(rows_BU))[:, None]
        times = np.bincount((rows_BU + offsets_B1).ravel(), minlength=rows_BU.size)
        found: Values = values_KU @ times.reshape(rows_BU.shape).T / num_users
        return found

    result = stats.bootstrap(
        (np.arange(num_users),), means, vectorized=True, n_resamples=RESAMPLES, batch=BATCH,
        confidence_level=LEVEL, method="percentile", rng=rng,
    )  # fmt: skip
    low_K, high_K = result.confidence_interval
    # Sums in another order, as other numbers of threads have them, must not show.
    return [
        (round(float(low), 12), round(float(high), 12))
        for low, high in zip(low_K, high_K, strict=True)
    ]


def signed_rank(differences_U: Values) -> float:
    """Two-sided p of Wilcoxon's signed-rank test; 1 where no user differs."""
    # Means over seeds that are equal must not differ in their last bits: ties would break.
    rounded_U = np.round(differences_U, 12)
    if not rounded_U.any():
        return 1.0
    return float(stats.wilcoxon(rounded_U, zero_method=ZERO_METHOD).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values (Holm, 1979): the k-th least times the number not yet rejected."""
    adjusted, least = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    for rank, place in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return adjusted


def seed_interval(values: Sequence[float], *, one_more: bool = False) -> Interval | None:
    """Student's t interval of the mean over seeds; None for fewer than three.

    With ``one_more`` the interval in which the figure of one more seed is expected.
    """
    number = len(values)
    if number < LEAST_SEEDS:
        return None
    mean, sd = float(np.mean(values)), float(np.std(values, ddof=1))
    factor = float(stats.t.ppf((1 + LEVEL) / 2, number - 1))
    reach = factor * sd * float(np.sqrt(1 / number + one_more))
    return mean - reach, mean + reach
