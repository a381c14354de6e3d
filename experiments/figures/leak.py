"""What attacks find in an upload against the number of users whose updates it sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from experiments.figures import style


@dataclass(frozen=True)
class Leak:
    """One attack: F1 and what is expected of as many random guesses, by users a sum (ascending)."""

    label: str
    users_N: Sequence[int]
    f1_N: Sequence[float]
    chance_N: Sequence[float]


@style.in_style
def leak_by_users(data: Sequence[Leak], title: str) -> Figure:
    """F1 of each attack as a line, its chance as a thin grey one below it."""
    figure, (axes,) = style.panels()
    for number, leak in enumerate(data):
        users = np.array(leak.users_N)
        axes.plot(users, leak.chance_N, color=style.REFERENCE, linewidth=0.8, linestyle=":")
        style.line(axes, users, np.array(leak.f1_N), number, leak.label)
    axes.plot([], [], color=style.REFERENCE, linewidth=0.8, linestyle=":", label="chance of each")
    shown = sorted({users for leak in data for users in leak.users_N})
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("users whose updates are summed")
    style.per_cent(axes, "F1")
    axes.set_title(title, loc="left")
    style.legend(figure, axes)
    return figure
