"""Log-log plots of growth, readable in grey."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

STYLES: tuple[tuple[str, str, str], ...] = (
    ("o", "-", "black"),
    ("s", "--", "0.45"),
    ("^", ":", "0.25"),
    ("D", "-.", "0.6"),
)
"""Marker, line and grey of each curve of a panel."""


@dataclass(frozen=True)
class Curve:
    """One curve: positive values ``ys`` at positive ``xs``."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """One set of axes; labels with units."""

    x_label: str
    y_label: str
    curves: Sequence[Curve]


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Exponent between the last two points: 1 for growth in proportion, 0 for none.

    Earlier points hold what is spent whatever the size.

    Raises:
        ValueError: for fewer than two points, or values that are not positive.

    """
    if len(xs) < 2 or len(xs) != len(ys) or min(*xs, *ys) <= 0:
        raise ValueError(f"a slope needs two points of positive values, got {xs}, {ys}")
    (x0, x1), (y0, y1) = np.log(xs[-2:]), np.log(ys[-2:])
    return float((y1 - y0) / (x1 - x0))


def save(path: Path, title: str, rows: Sequence[Sequence[Panel]]) -> None:
    """Draw rows of panels into a PNG; each curve's legend says its last slope."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter, StrMethodFormatter

    figure = Figure(figsize=(4.2 * len(rows[0]), 3.4 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for drawn, panels in zip(axes, rows, strict=True):
        for axis, panel in zip(drawn, panels, strict=True):
            for curve, (marker, line, grey) in zip(panel.curves, STYLES, strict=False):
                label = f"{curve.label}: slope {slope(curve.xs, curve.ys):.2f}"
                style = {"marker": marker, "linestyle": line, "color": grey, "label": label}
                axis.loglog(curve.xs, curve.ys, **style)
            axis.set_xlabel(panel.x_label)
            axis.set_ylabel(panel.y_label)
            for ruler in (axis.xaxis, axis.yaxis):
                ruler.set_major_formatter(StrMethodFormatter("{x:,g}"))
            axis.yaxis.set_minor_formatter(LogFormatter())
            axis.grid(visible=True, which="major", color="0.9")
            axis.legend(fontsize="small")
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})
