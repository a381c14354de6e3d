"""How figures look, and how they become files: readable small, in grey and by colour-blind eyes.

Colours are those of Okabe and Ito (Color Universal Design, 2008); series also differ in line and
marker, so that no figure needs its colours. No figure goes through pyplot: there is no global
state, and nothing is left open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from server_app.files import replace_file


@dataclass(frozen=True)
class Look:
    """Colour, line and marker of one series."""

    colour: str
    line: str
    marker: str


Numbers = npt.NDArray[Any]

LOOKS: tuple[Look, ...] = (
    Look("#0072B2", "-", "o"),
    Look("#D55E00", "--", "s"),
    Look("#009E73", "-.", "^"),
    Look("#CC79A7", ":", "D"),
    Look("#56B4E9", "-", "v"),
    Look("#E69F00", "--", "P"),
    Look("#000000", "-.", "X"),
)
"""Blue, vermilion, bluish green, reddish purple, sky blue, orange and black of Okabe and Ito."""
REFERENCE = "0.35"
"""Grey of what is drawn for comparison, such as popularity."""
BAND_ALPHA = 0.18
WIDTH, HEIGHT = 5.0, 3.3
"""Of one panel, in inches."""
LEGEND_LINE = 0.23
"""Height of a line of a legend, in inches."""
DPI = 160
"""Of the PNG: a panel is 800 pixels wide, and its text 11 pixels high where shown at 400."""
SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "font.size": 11,
    "axes.titlesize": 11,
    "legend.fontsize": 10,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "svg.hashsalt": "fedrecgel",
}


MARKS = 10
"""Markers of a line, about."""
LONG_LABEL = 20
"""Characters of a label beyond which a legend has one column."""
in_style = rc_context(SETTINGS)
"""Decorator: the function draws in the settings above, and leaves matplotlib's own alone."""


def look(number: int) -> Look:
    """Look of the series ``number``, from 0; colours come back with other markers and lines."""
    place, again = number % len(LOOKS), number // len(LOOKS)
    other = LOOKS[(place + again) % len(LOOKS)]
    return Look(LOOKS[place].colour, other.line, other.marker)


def panels(
    rows: int = 1, columns: int = 1, *, width: float = WIDTH, height: float = HEIGHT
) -> tuple[Figure, list[Axes]]:
    """A figure of ``rows`` × ``columns`` axes, row after row; sizes of one in inches."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def legend(figure: Figure, *drawn: Axes) -> None:
    """A legend of the series of these axes below the figure, for which the figure grows."""
    series = dict[str, Any]()
    for axes in drawn:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            series.setdefault(label, handle)
    if not series:
        return
    labels, handles = list(series), list(series.values())
    columns = 1 if max(map(len, labels)) > LONG_LABEL else 2
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * -(-len(labels) // columns))
    where: dict[str, Any] = {"loc": "outside lower center", "ncols": columns}
    figure.legend(handles, labels, frameon=False, handlelength=3.2, **where)


def line(axes: Axes, xs: Numbers, ys: Numbers, number: int, label: str) -> None:
    """Series ``number`` as a line with some ten markers, shifted so that series do not hide."""
    own, every = look(number), max(1, len(xs) // MARKS)
    drawn: dict[str, Any] = {"color": own.colour, "marker": own.marker, "linestyle": own.line}
    axes.plot(xs, ys, label=label, markevery=(number % every, every), **drawn)


def popularity_line(axes: Axes, value: float | None) -> None:
    """A dashed level: what ranking by popularity reaches."""
    if value is not None:
        axes.axhline(value, color=REFERENCE, linestyle=(0, (6, 3)), label="popularity")


def share_range(drawn: Sequence[Axes]) -> None:
    """Give all axes the same upright range, that of the widest."""
    low = min(axes.get_ylim()[0] for axes in drawn)
    high = max(axes.get_ylim()[1] for axes in drawn)
    for axes in drawn:
        axes.set_ylim(low, high)


def per_cent(axes: Axes, metric: str) -> None:
    """Label the upright axis as a metric in per cent; the values are shares of one.

    What follows the metric's first comma, such as its candidates, has a line of its own.
    """
    name, _, about = metric.partition(", ")
    axes.set_ylabel(f"{name} (%)" + (f"\n{about}" if about else ""))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))


def encoded(figure: Figure) -> dict[str, bytes]:
    """The figure as ``png`` and ``svg``; equal figures give equal bytes."""
    files = {}
    with rc_context(SETTINGS):
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            file = BytesIO()
            figure.savefig(file, format=kind, dpi=DPI, metadata=metadata)
            files[kind] = file.getvalue()
    return files


def save(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write ``stem.png`` and ``stem.svg``, each atomically; returns both paths."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = {kind: stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")}
    for kind, data in encoded(figure).items():
        replace_file(paths[kind], data)
    return paths["png"], paths["svg"]
