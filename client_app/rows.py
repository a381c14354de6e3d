"""From text to rows: a fast reading for clean files, a careful one that finds every bad row."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from client_app.layout import Layout

UNIT_SEPARATOR = "\x1f"
MISSING = frozenset({"", "nan", "na", "null", "none"})
INT64_LIMIT = 2**63
UNREADABLE = "unreadable"
"""First word about a line that cannot be cut into fields."""

Objects = npt.NDArray[np.object_]
Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """Good rows in file order, and the bad ones as (line, what is wrong).

    ``ratings`` and ``times`` are None without such a column; NaN marks a missing value.
    """

    users: Objects
    items: Objects
    ratings: Numbers | None
    times: Numbers | None
    bad: Sequence[tuple[int, str]] = ()


def read_rows(text: str, layout: Layout, needs_rating: bool) -> Rows:
    """Read all rows; blank lines are passed over. ``needs_rating``: a missing one is bad."""
    separator = layout.separator
    if len(separator) > 1:
        text, separator = text.replace(separator, UNIT_SEPARATOR), UNIT_SEPARATOR
    rows = _read_fast(text, layout, separator, needs_rating)
    return _read_carefully(text, layout, separator, needs_rating) if rows is None else rows


def _read_fast(text: str, layout: Layout, separator: str, needs_rating: bool) -> Rows | None:
    """Reading by pandas; None when anything is unusual, for the careful reading to judge."""
    numeric = {layout.positions.get("rating"), layout.positions.get("timestamp")}
    try:
        frame = pd.read_csv(
            io.StringIO(text),
            sep=separator,
            header=None,
            skiprows=int(layout.header),
            dtype={at: object for at in range(layout.num_fields) if at not in numeric},
            na_filter=False,
            quoting=_quoting(layout),
            low_memory=False,
        )
    except (pd.errors.ParserError, pd.errors.EmptyDataError):
        return None
    if frame.shape[1] != layout.num_fields or _is_unusual(frame, layout, needs_rating):
        return None
    columns = {m: frame[at].to_numpy() for m, at in layout.positions.items()}
    users, items = columns["user"], columns["item"]
    return Rows(users, items, columns.get("rating"), columns.get("timestamp"))


def _is_unusual(frame: pd.DataFrame, layout: Layout, needs_rating: bool) -> bool:
    """An empty id, a value that is no finite number, or a line that may be too short."""
    for meaning, at in layout.positions.items():
        column = frame[at]
        if meaning in ("user", "item"):
            # A line break in an id: a quote that another line's quote has closed, most likely.
            if any(not value.strip() or "\n" in value for value in column.unique()):
                return True
        elif column.dtype.kind not in "iuf" or not _is_complete(
            column.to_numpy(), meaning, needs_rating
        ):
            return True
    # pandas fills lines with too few fields up with empty ones.
    last = frame[layout.num_fields - 1]
    return last.dtype == object and bool((last == "").any())


def _is_complete(numbers: Numbers, meaning: str, needs_rating: bool) -> bool:
    """Nothing infinite, and nothing missing where the value is needed."""
    if meaning == "rating" and needs_rating:
        return bool(np.isfinite(numbers).all())
    return not np.isinf(numbers).any()


def _read_carefully(text: str, layout: Layout, separator: str, needs_rating: bool) -> Rows:
    good: list[Sequence[str]] = []
    bad: list[tuple[int, str]] = []
    for line, fields, unreadable in _lines(text, layout, separator):
        if problem := unreadable or _problem(fields, layout, needs_rating):
            bad.append((line, problem))
        else:
            good.append(fields)
    columns = {m: [fields[at] for fields in good] for m, at in layout.positions.items()}
    users, items = (np.array(columns[m], dtype=object) for m in ("user", "item"))
    ratings, times = (
        _numbers(columns[m]) if m in columns else None for m in ("rating", "timestamp")
    )
    return Rows(users, items, ratings, times, bad)


def _lines(text: str, layout: Layout, separator: str) -> Iterator[tuple[int, list[str], str]]:
    """Line number, fields and problem ('' if it could be cut) of each line that is not blank."""
    # Only \n ends a line, so that line numbers are an editor's.
    lines = iter(text.replace("\r\n", "\n").split("\n"))
    reader = csv.reader(lines, delimiter=separator, quoting=_quoting(layout), strict=True)
    header = layout.header
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, [], _unreadable(error, reader.line_num - line + 1)
            header = False
            continue
        if header:
            header = False
            continue
        blank = not "".join(fields).strip() and (len(fields) <= 1 or separator.isspace())
        if not blank:
            yield line, fields, ""


def _unreadable(error: csv.Error, lines: int) -> str:
    """What csv says of quotes, in terms of the line where the row begins."""
    if "unexpected end of data" in str(error):
        return f'{UNREADABLE}: a quote (") opens here and is never closed'
    across = f" (the quoted field runs over {lines} lines)" if lines > 1 else ""
    return f'{UNREADABLE} quotes (") or field: {error}{across}'


def _quoting(layout: Layout) -> Literal[0, 3]:
    return csv.QUOTE_MINIMAL if layout.quoted else csv.QUOTE_NONE


def _problem(fields: Sequence[str], layout: Layout, needs_rating: bool) -> str:
    """What is wrong with a line, or ''."""
    if len(fields) != layout.num_fields:
        return f"{len(fields)} fields, expected {layout.num_fields}"
    for meaning, at in layout.positions.items():
        text = fields[at]
        if meaning in ("user", "item"):
            if not text.strip():
                return f"empty {meaning} id"
            continue
        number = number_of(text)
        if number is None:
            return f"{meaning} {text!r} is not a number"
        if meaning == "rating" and needs_rating and math.isnan(number):
            return "rating is missing, dataset.rating_threshold needs it"
    return ""


def number_of(text: str) -> int | float | None:
    """Value of a numeric field, NaN where it is missing, None where it is no finite number."""
    text = text.strip()
    if text.lower() in MISSING:
        return math.nan
    if "_" in text:
        return None
    for kind in (int, float):
        try:
            value: int | float = kind(text)
        except ValueError:
            continue
        return value if abs(value) < math.inf else None
    return None


def _numbers(texts: Sequence[str]) -> Numbers:
    """Whole numbers stay exact (nanosecond times need it); anything else is float64."""
    values = [number_of(text) for text in texts]
    exact = all(isinstance(v, int) and abs(v) < INT64_LIMIT for v in values)
    return np.array(values, dtype=np.int64 if exact else np.float64)
