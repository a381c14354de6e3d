"""Loss landscapes: contours of the training loss in two directions, runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from experiments.figures import style

Floats = npt.NDArray[np.float64]
LEVELS = 12
TITLE_WIDTH = 26
"""Characters of a line of a panel's title."""


@dataclass(frozen=True)
class Surface:
    """Loss of one run at θ + α d₁ + β d₂."""

    label: str
    steps_G: Floats
    """α, and likewise β: ascending, 0 among them."""
    loss_GG: Floats
    """Loss at (α, β), one row an α."""
    note: str = ""
    """A line below the title, such as a sharpness number."""


@style.in_style
def loss_landscape(surfaces: Sequence[Surface], quantity: str = "training loss a user") -> Figure:
    """Contours of each surface on one scale of colours and levels; a cross at the run's point.

    Levels are spaced by equal ratios of what lies above the least loss, so that the floor of a
    deep bowl is not a single colour.
    """
    levels = shared_levels([surface.loss_GG for surface in surfaces])
    figure, drawn = style.panels(columns=len(surfaces), width=3.1, height=4.1)
    for axes, surface in zip(drawn, surfaces, strict=True):
        filled = _contours(axes, surface, levels)
    bar = figure.colorbar(
        filled, ax=drawn, label=quantity, ticks=levels[::3], location="bottom", aspect=30
    )
    bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    return figure


def _contours(axes: Axes, surface: Surface, levels: Floats) -> QuadContourSet:
    steps, loss_GG = surface.steps_G, surface.loss_GG.T  # contour wants a row a β
    norm = BoundaryNorm(levels.tolist(), 256)
    filled = axes.contourf(steps, steps, loss_GG, levels=levels, cmap="cividis", norm=norm)
    axes.contour(steps, steps, loss_GG, levels=levels, colors="black", linewidths=0.5)
    axes.plot(0, 0, "P", color="white", markeredgecolor="black", markersize=9)
    axes.set_aspect("equal")
    axes.grid(visible=False)
    lines = [*wrap(surface.label, TITLE_WIDTH), *surface.note.splitlines()]
    axes.set_title("\n".join(lines))
    axes.set_xlabel("α (filter norms)")
    axes.set_ylabel("β (filter norms)")
    return filled


def shared_levels(losses: Sequence[Floats]) -> Floats:
    """Ascending levels from the least to the greatest of all losses, closer at the floor."""
    least = min(float(loss.min()) for loss in losses)
    most = max(float(loss.max()) for loss in losses)
    span = most - least if most > least else max(abs(least), 1.0) * 1e-6
    levels: Floats = least + span * np.linspace(0.0, 1.0, LEVELS + 1) ** 2
    return levels
