"""Tables that fit the terminal: columns go into a further table instead of being cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

PAIR = 2
"""Figures come in pairs, such as HR and NDCG, which stay in one table where they fit."""
READABLE = 100
"""The longest line of notes, in characters."""


@dataclass(frozen=True)
class Row:
    """One row: what it is about, and its figures."""

    keys: Sequence[str]
    figures: Sequence[str]


@dataclass(frozen=True)
class FittedTable:
    """A table whose figures spread over as many tables as the width asks for.

    Rows are never wrapped and no cell is cut, unless a single column of figures does not fit.
    """

    title: str
    keys: Sequence[str]
    """Headings that every table begins with."""
    figures: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[Sequence[str]] = ()
    """Paragraphs below the table, each of phrases that stay whole where they can."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.title, style="bold")
        start = 0
        while start < len(self.figures):
            end = len(self.figures)
            while end > start + 1 and not self._fits(console, options, start, end):
                end -= 1
            if end < len(self.figures) and end - start > 1:
                end -= (end - start) % PAIR
            yield self._table(start, end)
            start = end
        for phrases in self.notes:
            for line in lines_of(phrases, min(options.max_width, READABLE)):
                yield Text(line, style="dim")

    def _fits(self, console: Console, options: ConsoleOptions, start: int, end: int) -> bool:
        # The console's own options would limit the measure to its width.
        unlimited = options.update(width=10_000)
        needed = Measurement.get(console, unlimited, self._table(start, end)).maximum
        return needed <= options.max_width

    def _table(self, start: int, end: int) -> Table:
        table = Table()
        for heading in self.keys:
            table.add_column(heading, no_wrap=True)
        for heading in self.figures[start:end]:
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(*map(Text, row.keys), *map(Text, row.figures[start:end]))
        return table


def lines_of(phrases: Sequence[str], width: int) -> list[str]:
    """Phrases joined by semicolons, as many on a line as fit in ``width`` characters."""
    lines: list[str] = []
    for number, phrase in enumerate(phrases):
        text = phrase if number == len(phrases) - 1 else f"{phrase};"
        if lines and len(lines[-1]) + 1 + len(text) <= width:
            lines[-1] += f" {text}"
        else:
            lines.append(text)
    return lines
