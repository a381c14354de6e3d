"""The rows of a data file as numbers: users, items and order in time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from client_app.errors import DataError
from client_app.files import decode
from client_app.layout import layout_of
from client_app.rows import UNREADABLE, Numbers, Objects, Rows, number_of, read_rows
from conf.tree import DatasetConfig
from models.types import IntArray

Strings = npt.NDArray[np.str_]

NOTEBOOK_SEED = 42
NOTEBOOK_TIMES, NOTEBOOK_STEP = 10**9, 10**6


@dataclass(frozen=True)
class Interactions:
    """Rows in file order. A user or item is its position in ``user_ids`` or ``item_ids``.

    ``times`` orders rows: larger is later, values have no unit. ``counts`` tells what was
    read: ``rows`` good ones, ``bad_rows`` left out, ``below_threshold`` left out.
    """

    users: IntArray
    items: IntArray
    times: IntArray
    user_ids: Strings
    item_ids: Strings
    counts: Mapping[str, int]
    timestamps: Numbers | None = None
    """As read, NaN for a missing one; None where ``times`` come from elsewhere."""


def parse(raw: bytes, config: DatasetConfig, path: str) -> Interactions:
    """Interactions of an unpacked file; ``path`` is for messages and for its suffix.

    Raises:
        DataError: ``file:line: what`` for the first bad row (with ``bad_rows=error``), an empty
            file, or counts other than the description's.

    """
    text = decode(raw, config.encoding, path)
    if not text.strip():
        raise DataError(f"{path}: the file is empty")
    layout = layout_of(config, text, path)
    rows = read_rows(text, layout, config.rating_threshold is not None)
    _check_rows(rows, config, path)
    users, user_ids = _numbered(rows.users, config, "user", path)
    items, item_ids = _numbered(rows.items, config, "item", path)
    found = {"rows": len(users), "users": len(user_ids), "items": len(item_ids)}
    _check_counts(found, config, path)
    keep = _above_threshold(rows, config)
    times = _times(rows.times, users, config)
    counts = {
        "rows": len(users),
        "bad_rows": len(rows.bad),
        "below_threshold": int(len(users) - keep.sum()),
    }
    stamps = rows.times[keep] if config.time == "timestamp" and rows.times is not None else None
    return Interactions(users[keep], items[keep], times[keep], user_ids, item_ids, counts, stamps)


def _check_rows(rows: Rows, config: DatasetConfig, path: str) -> None:
    if rows.bad and config.bad_rows == "error":
        line, what = rows.bad[0]
        more = f" (and {len(rows.bad) - 1} more bad rows)" if len(rows.bad) > 1 else ""
        hint = "dataset.bad_rows=skip leaves bad rows out"
        is_header = line == 1 and len(rows.bad) == 1 and not what.startswith(UNREADABLE)
        if is_header and not config.header:
            hint = "for a line of column names dataset.header=true"
        raise DataError(f"{path}:{line}: {what}{more}; {hint}")
    if not len(rows.users):
        skipped = f"; {len(rows.bad)} bad rows were left out" if rows.bad else ""
        raise DataError(f"{path}: no rows{skipped}")


def _check_counts(found: Mapping[str, int], config: DatasetConfig, path: str) -> None:
    for what, number in found.items():
        expected = getattr(config, what)
        if expected is not None and number != expected:
            raise DataError(
                f"{path}: {number} {what}, dataset={config.name} has {expected}; for another "
                f"copy of the data set dataset.{what}=null"
            )


def _numbered(
    raw: Objects, config: DatasetConfig, what: str, path: str
) -> tuple[IntArray, Strings]:
    """Position of each row's id, and the ids in order of first appearance or as numbers."""
    codes, distinct = pd.factorize(raw)
    if config.id_order == "number":
        order = _numeric_order(distinct, what, path)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        codes, distinct = rank[codes], distinct[order]
    return codes.astype(np.int64), np.array(distinct.tolist(), dtype=np.str_)


def _numeric_order(distinct: Objects, what: str, path: str) -> IntArray:
    values = []
    for text in distinct:
        value = number_of(text)
        if value is None or math.isnan(value):
            raise DataError(
                f"{path}: {what} id {text!r} is not a number, as dataset.id_order=number needs; "
                "set dataset.id_order=first_appearance"
            )
        values.append(value)
    return np.array(sorted(range(len(values)), key=values.__getitem__), dtype=np.int64)


def _above_threshold(rows: Rows, config: DatasetConfig) -> npt.NDArray[np.bool_]:
    if config.rating_threshold is None or rows.ratings is None:
        return np.ones(len(rows.users), dtype=np.bool_)
    keep: npt.NDArray[np.bool_] = rows.ratings >= config.rating_threshold
    return keep


def _times(timestamps: Numbers | None, users: IntArray, config: DatasetConfig) -> IntArray:
    """Order of the rows in time, from 0; a missing timestamp is before every known one."""
    if config.time == "file_order" or timestamps is None:
        if config.time != "random":
            return np.arange(len(users), dtype=np.int64)
        timestamps = _random_times(users)
    elif config.time == "random":
        timestamps = _random_times(users)
    distinct, codes = np.unique(timestamps, return_inverse=True)
    if distinct.dtype.kind == "f" and np.isnan(distinct[-1]):
        codes = np.where(codes == len(distinct) - 1, -1, codes)
    return codes.astype(np.int64)


def _random_times(users: IntArray) -> npt.NDArray[Any]:
    """The paper notebook's times for FilmTrust: drawn once, whatever the run's seed."""
    # Its generator is NumPy's default_rng(42), not a derived stream: part of the paper's split.
    rng = np.random.default_rng(NOTEBOOK_SEED)
    drawn = rng.integers(0, NOTEBOOK_TIMES, len(users), dtype=np.int64)
    running = pd.Series(users).groupby(users).cumcount().to_numpy()
    return drawn * NOTEBOOK_STEP + running
