"""Accuracy by group of users, or of held-out items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from experiments.figures import style

Floats = npt.NDArray[np.float64]
WIDTH_OF_ALL = 0.6
"""Of the series of one group, where groups are 1 apart."""


@dataclass(frozen=True)
class GroupSeries:
    """One method's metric in each group."""

    label: str
    means_K: Floats
    """Mean over the users of each of K groups, a share of one; nan for an empty group."""
    errors_K: Floats
    """Its standard error over users."""


@dataclass(frozen=True)
class GroupedAccuracy:
    """Several methods over the same groups of users."""

    metric: str
    groups: Sequence[str]
    """What each of the K groups is."""
    users_K: npt.NDArray[np.int64]
    """Users in each."""
    series: Sequence[GroupSeries]


@style.in_style
def accuracy_by_group(panels: Sequence[GroupedAccuracy]) -> Figure:
    """Mean and standard error over users in each group, a panel a grouping."""
    figure, drawn = style.panels(len(panels), height=2.8)
    for axes, data in zip(drawn, panels, strict=True):
        offsets = _offsets(len(data.series))
        for number, (series, offset) in enumerate(zip(data.series, offsets, strict=True)):
            look, at_K = style.look(number), np.arange(len(data.groups)) + offset
            marks: dict[str, Any] = {
                "fmt": look.marker,
                "color": look.colour,
                "capsize": 3,
                "markersize": 7,
            }
            axes.errorbar(at_K, series.means_K, series.errors_K, label=series.label, **marks)
        names = [f"{g}\n{n} users" for g, n in zip(data.groups, data.users_K, strict=True)]
        axes.set_xticks(range(len(data.groups)), names)
        axes.set_xlim(-0.5, len(data.groups) - 0.5)
        axes.set_ylim(bottom=0)
        axes.grid(visible=False, axis="x")
        style.per_cent(axes, data.metric)
    drawn[0].set_title("mean ± standard error over users", loc="left")
    style.legend(figure, drawn[0])
    return figure


def _offsets(count: int) -> list[float]:
    """Places of ``count`` series around the middle of a group."""
    return [WIDTH_OF_ALL * ((k + 0.5) / count - 0.5) for k in range(count)]
