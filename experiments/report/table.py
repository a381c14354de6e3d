"""A table of results as data: what each cell shows, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Value = str | int | float | None


@dataclass(frozen=True)
class Cell:
    """What a reader sees."""

    text: str
    bold: bool = False
    mark: str = ""
    """A dagger or the like, after the text."""


@dataclass(frozen=True)
class Line:
    """One row."""

    label: Cell
    cells: Sequence[Cell]
    is_federated: bool = True
    """False for what has no part in the comparison of federated arms: set apart."""


@dataclass(frozen=True)
class Table:
    """A table with its caption, and its numbers in full."""

    slug: str
    """Name of its files."""
    title: str
    caption: Sequence[str]
    """Sentences."""
    headings: Sequence[str]
    """Of the label and of each cell."""
    lines: Sequence[Line]
    numbers: Sequence[Mapping[str, Value]] = field(default_factory=tuple)
    """Rows of the CSV: metrics as shares of one, costs in bytes and seconds."""
