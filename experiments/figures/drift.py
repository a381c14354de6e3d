"""Stability of item embeddings between rounds, from what ``item_drift.jsonl`` says of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures import style

TURNED = "1 − cosine"
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ItemDrift:
    """One run's item table over its observed rounds, each against the observation before."""

    label: str
    rounds_E: npt.NDArray[np.int64]
    mean_E: Floats
    """Mean over items of the cosine between an item's embedding now and before."""
    variance_E: Floats
    """Variance of a coordinate over items, mean over coordinates; nan where it is not known."""
    deciles_E9: Floats
    """Its deciles, from the 10 % of items that turned most to the 90 %."""
    step_E: Floats
    """Mean over items of ‖now - before‖ / ‖before‖."""


@style.in_style
def item_drift(runs: Sequence[ItemDrift]) -> Figure:
    """How far embeddings turn and move between observations, and how they vary over items.

    The band of the first panel runs from the 10 % of items that turned least to the 10 % that
    turned most. Scales are logarithmic: what is zero is left out. So is a panel without values.
    """
    quantities = {
        TURNED: [1 - run.mean_E for run in runs],
        "relative step": [run.step_E for run in runs],
        "variance of\na coordinate": [run.variance_E for run in runs],
    }
    shown = {n: v for n, v in quantities.items() if n == TURNED or _any_above_zero(v)}
    figure, drawn = style.panels(len(shown), height=2.2)
    _bands(drawn[0], runs)
    for axes, (name, values) in zip(drawn, shown.items(), strict=True):
        for number, (run, values_E) in enumerate(zip(runs, values, strict=True)):
            style.line(axes, run.rounds_E, _above_zero(values_E), number, run.label)
        axes.set_yscale("log")
        axes.set_ylabel(name)
    drawn[0].set_title("mean over items; band: 10 % to 90 % of items", loc="left")
    drawn[-1].set_xlabel("round")
    style.legend(figure, drawn[0])
    return figure


def _bands(axes: Axes, runs: Sequence[ItemDrift]) -> None:
    for number, run in enumerate(runs):
        least_E, most_E = (_above_zero(1 - run.deciles_E9[:, place]) for place in (-1, 0))
        band: dict[str, Any] = {"alpha": style.BAND_ALPHA, "lw": 0}
        colour = style.look(number).colour
        axes.fill_between(run.rounds_E, least_E, most_E, color=colour, **band)


def _any_above_zero(values: Sequence[Floats]) -> bool:
    return any((values_E > 0).any() for values_E in values)


def _above_zero(values_E: Floats) -> Floats:
    """Nothing where a value is not positive: a logarithmic scale has no place for it."""
    found: Floats = np.where(values_E > 0, values_E, np.nan)
    return found
