"""Whole numbers drawn without replacement, and items numbered outside a user's own."""

from __future__ import annotations

import numpy as np

from client_app.ragged import Ragged
from models.rng import UserStreams
from models.types import IntArray

TABLE_CELLS = 64
"""Items outside are looked up in a table of (users, items) up to this many cells a query."""
SPARE = 8
"""Draws beyond those wanted, so that a repeated one seldom asks for more."""


def distinct_in_order(drawn_RK: IntArray) -> IntArray:
    """(R, K) numbers distinct within a row, from column k uniform below n − k.

    Each row is uniform over the ordered selections of K from n: column k takes the t-th, t
    drawn, of the numbers its row has not yet taken. The memory of ``drawn`` may be written over.
    """
    columns = np.ascontiguousarray(drawn_RK.T)
    ascending: list[IntArray] = []
    for column_R in columns:
        largest_R = column_R
        # Ascending, each number taken at or below t moves t up by one.
        for previous_R in ascending:
            largest_R += largest_R >= previous_R
        for place, previous_R in enumerate(ascending):
            ascending[place] = np.minimum(previous_R, largest_R)
            largest_R = np.maximum(previous_R, largest_R)
        ascending.append(largest_R)
    return columns.T


def distinct_rows(
    bounds_U: IntArray, columns: int, streams: UserStreams, users_U: IntArray
) -> IntArray:
    """(U, columns) numbers below ``bounds``, distinct within a user, for many columns.

    The first distinct ones of a user's stream of uniform numbers: uniform over the ordered
    selections. Where few are left out, the order of random keys instead.

    Raises:
        ValueError: when a bound is below ``columns``.

    """
    if len(bounds_U) and bounds_U.min() < columns:
        raise ValueError(f"cannot draw {columns} distinct numbers below {bounds_U.min()}")
    out = np.empty((len(users_U), columns), dtype=np.int64)
    dense_U = bounds_U < 2 * columns
    for u in np.flatnonzero(dense_U):
        keys = streams.uniforms(users_U[u : u + 1], [int(bounds_U[u])])
        out[u] = np.argsort(keys, kind="stable")[:columns]
    rows, width = np.flatnonzero(~dense_U), columns + SPARE
    while len(rows):
        uniforms = streams.uniforms(users_U[rows], np.full(len(rows), width)).reshape(-1, width)
        drawn = (uniforms * bounds_U[rows, None]).astype(np.int64)
        complete, out[rows] = _first_distinct(drawn, columns)
        rows, width = rows[~complete], 2 * width
    return out


def _first_distinct(drawn_RW: IntArray, columns: int) -> tuple[np.ndarray, IntArray]:
    """Which rows have ``columns`` distinct numbers (R,), and the first of these in each row."""
    order = np.argsort(drawn_RW, axis=1, kind="stable")
    ascending = np.take_along_axis(drawn_RW, order, axis=1)
    repeated = np.zeros(drawn_RW.shape, dtype=bool)
    np.put_along_axis(repeated, order[:, 1:], ascending[:, 1:] == ascending[:, :-1], axis=1)
    # Stable: the repeats go behind, all else stays in order.
    first = np.argsort(repeated, axis=1, kind="stable")[:, :columns]
    complete = (~repeated).sum(axis=1) >= columns
    return complete, np.take_along_axis(drawn_RW, first, axis=1)


def nth_outside(ranks: IntArray, users: IntArray, excluded: Ragged, num_items: int) -> IntArray:
    """Items that are the ``ranks``-th, from 0, outside their user's excluded ones.

    ``ranks`` (Q, …) goes with ``users`` (Q,); ``excluded`` is sorted and distinct in a user.
    """
    num_users = len(excluded.lengths_U)
    users = users.reshape(-1, *[1] * (ranks.ndim - 1))
    if num_users * num_items <= TABLE_CELLS * ranks.size:
        outside = np.ones(num_users * num_items, dtype=bool)
        outside[excluded.keys(num_items)] = False
        # Before a user's own cells lie those of the users before, less what they exclude.
        starts_U = np.arange(num_users) * num_items - excluded.starts
        found: IntArray = np.flatnonzero(outside)[starts_U[users] + ranks] - users * num_items
        return found
    # excluded[j] - j items outside lie below excluded[j].
    place = np.arange(len(excluded.values)) - excluded.starts[excluded.users]
    below = excluded.users * num_items + excluded.values - place
    wanted = users * num_items + ranks
    passed = np.searchsorted(below, wanted, side="right") - excluded.starts[users]
    return ranks + passed
