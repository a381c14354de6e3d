"""Sensitivity to the perturbation radii: a metric against ρ_shared and ρ_private."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from experiments.figures import style
from experiments.figures.curves import means

Floats = npt.NDArray[np.float64]
ZERO_GAP = 0.5
"""Decades between ρ = 0 and the least positive radius on the axis."""


@dataclass(frozen=True)
class Sensitivity:
    """A metric at several values of one radius, all else alike."""

    radius: str
    """Axis label, such as ``ρ_shared``."""
    rho_R: Floats
    """Radii, distinct and not negative; zero may be among them."""
    values_RN: Floats
    """Metric of each seed (N) at each radius, a share of one; nan where a seed has none."""
    label: str = ""
    """What the series is of, where a panel has several."""


@style.in_style
def rho_sensitivity(
    data: Sequence[Sensitivity], metric: str, popularity: float | None = None
) -> Figure:
    """Mean ± sample standard deviation over seeds against ρ, a panel a radius.

    The axis is logarithmic beyond ρ = 0, which stands on the left of a break. Series of the same
    ``radius`` share a panel, and those of the same label look the same.
    """
    radii = list(dict.fromkeys(series.radius for series in data))
    labels = list(dict.fromkeys(series.label for series in data))
    figure, drawn = style.panels(len(radii), height=2.8)
    for axes, radius in zip(drawn, radii, strict=True):
        own = [series for series in data if series.radius == radius]
        positive = np.unique(np.concatenate([s.rho_R[s.rho_R > 0] for s in own]))
        zero = any((s.rho_R == 0).any() for s in own)
        for series in own:
            _series(axes, series, labels.index(series.label), positive)
        style.popularity_line(axes, popularity)
        _radius_axis(axes, positive, zero)
        axes.set_xlabel(_mathematical(radius))
        style.per_cent(axes, metric)
    style.share_range(drawn)
    drawn[0].set_title("mean ± sd over seeds", loc="left")
    style.legend(figure, *drawn)
    return figure


def _series(axes: Axes, series: Sensitivity, number: int, positive: Floats) -> None:
    look, order = style.look(number), np.argsort(series.rho_R)
    values_RN = series.values_RN[order]
    at_R = places(series.rho_R[order], positive)
    means_R = means(values_RN.T)
    sds_R = np.array([_sd(row) for row in values_RN])
    style_of: dict[str, Any] = {"color": look.colour, "marker": look.marker, "linestyle": look.line}
    axes.errorbar(at_R, means_R, sds_R, capsize=3, label=series.label or None, **style_of)


def places(rho_R: Floats, positive: Floats) -> Floats:
    """Places on the axis: log10 of a radius, and of ρ = 0 half a decade before the least."""
    least = positive.min() if len(positive) else 1.0
    with np.errstate(divide="ignore"):
        logs_R = np.log10(rho_R)
    found: Floats = np.where(rho_R > 0, logs_R, np.log10(least) - ZERO_GAP)
    return found


def _radius_axis(axes: Axes, positive: Floats, zero: bool) -> None:
    """Ticks at the radii themselves; a break in the axis after ρ = 0."""
    radii = np.concatenate([np.zeros(1 if zero else 0), positive])
    at = places(radii, positive)
    shown = dict(zip(at.tolist(), radii.tolist(), strict=True))
    axes.xaxis.set_major_locator(FixedLocator(at.tolist()))
    axes.xaxis.set_minor_locator(NullLocator())
    nearest = FuncFormatter(lambda x, _: f"{shown[min(shown, key=lambda a: abs(a - x))]:g}")
    axes.xaxis.set_major_formatter(nearest)
    axes.tick_params(axis="x", rotation=45 if len(radii) > 5 else 0)
    if zero and len(positive):
        middle = (at[0] + at[1]) / 2
        mark: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False}
        axes.text(middle, 0.0, "//", ha="center", va="center", **mark)


def _sd(values_N: Floats) -> float:
    there = values_N[~np.isnan(values_N)]
    return float(there.std(ddof=1)) if len(there) > 1 else 0.0


def _mathematical(name: str) -> str:
    """``ρ_shared`` with its index set low."""
    symbol, _, index = name.partition("_")
    return rf"{symbol}$_{{\mathrm{{{index}}}}}$" if index else symbol
