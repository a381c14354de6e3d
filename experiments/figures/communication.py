"""Communication against accuracy: bytes a user, against the metric as rounds go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from experiments.figures import style

Floats = npt.NDArray[np.float64]
SHORT = 100
"""Greatest to least number of bytes below which powers of ten alone are too few ticks."""
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True)
class CommunicationCurve:
    """One method: what it had cost and what it reached at each evaluated round."""

    label: str
    bytes_E: Floats
    """Bytes up and down until that round over the users of the federation, positive."""
    values_E: Floats
    """Metric at that round, a share of one (mean over seeds where there are several)."""


@style.in_style
def accuracy_by_bytes(
    curves: Sequence[CommunicationCurve], metric: str, popularity: float | None = None
) -> Figure:
    """The metric against cumulative bytes a user on a logarithmic scale; popularity dashed."""
    figure, (axes,) = style.panels()
    for number, curve in enumerate(curves):
        style.line(axes, curve.bytes_E, curve.values_E, number, curve.label)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < SHORT * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: in_units(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    style.popularity_line(axes, popularity)
    axes.set_xlabel("bytes up and down a user, so far")
    style.per_cent(axes, metric)
    style.legend(figure, axes)
    return figure


def in_units(value: float) -> str:
    """Bytes in decimal units: ``in_units(2e6)`` is ``2 MB``."""
    power = 0
    while value >= 1000 and power < len(UNITS) - 1:
        value, power = value / 1000, power + 1
    return f"{value:g} {UNITS[power]}"
