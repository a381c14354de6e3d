"""Learning curves: a metric at each evaluated round, with a band over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from experiments.figures import style

Floats = npt.NDArray[np.float64]
Band = Literal["range", "sd"]
BANDS = {"range": "band: least to greatest", "sd": "band: mean ± sd"}


@dataclass(frozen=True)
class LearningCurve:
    """One method's metric over rounds, from one or several seeds."""

    label: str
    rounds_E: npt.NDArray[np.int64]
    """Evaluated rounds, ascending."""
    values_NE: Floats
    """Metric of each seed (N) at each of them, a share of one; nan where a seed has none."""


@dataclass(frozen=True)
class LearningCurves:
    """Several methods under one protocol and metric."""

    metric: str
    """In words, such as ``NDCG@10, whole catalogue, test``."""
    curves: Sequence[LearningCurve]
    popularity: float | None = None
    """The same metric of ranking by popularity."""


@style.in_style
def learning_curves(data: LearningCurves, band: Band = "range") -> Figure:
    """Mean over seeds against rounds; a band where there are several seeds, popularity dashed.

    ``band``: from the least to the greatest seed, or mean ± sample standard deviation.
    """
    figure, (axes,) = style.panels()
    for number, curve in enumerate(data.curves):
        label, seeds = curve.label, len(curve.values_NE)
        if seeds > 1:
            label += f" ({seeds} seeds)"
            filled: dict[str, Any] = {
                "color": style.look(number).colour,
                "alpha": style.BAND_ALPHA,
                "lw": 0,
            }
            axes.fill_between(curve.rounds_E, *spread(curve.values_NE, band), **filled)
        style.line(axes, curve.rounds_E, means(curve.values_NE), number, label)
    style.popularity_line(axes, data.popularity)
    if any(len(curve.values_NE) > 1 for curve in data.curves):
        axes.set_title(BANDS[band], loc="right")
    axes.set_xlabel("round")
    style.per_cent(axes, data.metric)
    style.legend(figure, axes)
    return figure


def means(values_NE: Floats) -> Floats:
    """Mean over the seeds that have a value, at each round (E,); nan where none has."""
    counts_E = np.count_nonzero(~np.isnan(values_NE), axis=0)
    found: Floats = np.nansum(values_NE, axis=0) / np.where(counts_E, counts_E, np.nan)
    return found


def spread(values_NE: Floats, band: Band) -> tuple[Floats, Floats]:
    """Lower and upper edge (E,) of the band; nan where fewer than two seeds have a value."""
    low_E, high_E = (np.full(values_NE.shape[1], np.nan) for _ in range(2))
    for place, column_N in enumerate(values_NE.T):
        there = column_N[~np.isnan(column_N)]
        if len(there) < 2:
            continue
        if band == "range":
            low_E[place], high_E[place] = there.min(), there.max()
        else:
            middle, sd = there.mean(), there.std(ddof=1)
            low_E[place], high_E[place] = middle - sd, middle + sd
    return low_E, high_E
