"""Stability of item embeddings between rounds: cosine to the observation before, and its spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from experiments.figures import style

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ItemDrift:
    """One run's item table over its observed rounds, each against the observation before."""

    label: str
    rounds_E: npt.NDArray[np.int64]
    mean_E: Floats
    """Mean over items of the cosine between an item's embedding now and before."""
    variance_E: Floats
    """Variance over items of that cosine."""
    deciles_E9: Floats
    """Its deciles, from the 10 % of items that turned most to the 90 %."""
    step_E: Floats
    """Mean over items of ‖now - before‖ / ‖before‖."""


@style.in_style
def item_drift(runs: Sequence[ItemDrift]) -> Figure:
    """How far embeddings turn between observations: 1 - cosine, its variance, relative steps.

    The band of the first panel runs from the 10 % of items that turned least to the 10 % that
    turned most. All three are zero for a table that stands still; scales are logarithmic.
    """
    figure, (turned, variance, steps) = style.panels(3, height=2.2)
    for number, run in enumerate(runs):
        look = style.look(number)
        low_E, high_E = 1 - run.deciles_E9[:, -1], 1 - run.deciles_E9[:, 0]
        band: dict[str, Any] = {"color": look.colour, "alpha": style.BAND_ALPHA, "lw": 0}
        turned.fill_between(run.rounds_E, _above_zero(low_E), _above_zero(high_E), **band)
        series = ((turned, 1 - run.mean_E), (variance, run.variance_E), (steps, run.step_E))
        for axes, values_E in series:
            style.line(axes, run.rounds_E, _above_zero(values_E), number, run.label)
    names = ("1 − cosine", "variance of cosine", "relative step")
    for axes, name in zip((turned, variance, steps), names, strict=True):
        axes.set_yscale("log")
        axes.set_ylabel(name)
    turned.set_title("mean over items; band: 10 % to 90 % of items", loc="left")
    steps.set_xlabel("round")
    style.legend(figure, turned)
    return figure


def _above_zero(values_E: Floats) -> Floats:
    """Nothing where a value is not positive: a logarithmic scale has no place for it."""
    found: Floats = np.where(values_E > 0, values_E, np.nan)
    return found
