"""Items that a held-out item is ranked against in sampled evaluation, a row a user."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from client_app.distinct import distinct_rows, nth_outside
from client_app.errors import DataError
from client_app.ragged import Ragged
from models.rng import Role, UserStreams
from models.types import IntArray

if TYPE_CHECKING:  # it imports pandas
    from client_app.split import Split

SEED = 42
TEST_STREAM, VALIDATION_STREAM = 0, 1
BLOCK = 1024
"""Users drawn for at once."""


def derived(
    split: Split, num_candidates: int, stream: int, users_U: IntArray | None = None
) -> IntArray:
    """(U, C) distinct items, sorted, uniform over those the user has in no row at all.

    User u's come from the stream (42, EVAL_NEGATIVES, ``stream``, u): the same in every run,
    whatever its seed; test and validation candidates are independent of each other. ``users``
    are the global indices of the split's rows where these are not 0, 1, 2 and so on.

    Raises:
        DataError: when a user has too many of the items.

    """
    _check_size(split, num_candidates)
    num_items, rows_U = len(split.item_ids), np.arange(len(split.user_ids))
    users_U = rows_U if users_U is None else users_U
    drawn = [
        draw_candidates(
            Ragged.of(split.own_indptr, split.own_items, rows_U[at : at + BLOCK]),
            users_U[at : at + BLOCK],
            num_items,
            num_candidates,
            stream,
        )
        for at in range(0, len(rows_U), BLOCK)
    ]
    return np.concatenate(drawn)


def draw_candidates(
    own: Ragged, users_U: IntArray, num_items: int, num_candidates: int, stream: int
) -> IntArray:
    """The same for some users, given the distinct items, sorted, that each of them has."""
    streams = UserStreams(SEED, Role.EVAL_NEGATIVES, stream)
    ranks = distinct_rows(num_items - own.lengths_U, num_candidates, streams, users_U)
    found = nth_outside(ranks, np.arange(len(users_U)), own, num_items)
    return np.sort(found, axis=1)


def to_be_drawn(num_candidates: int) -> IntArray:
    """What stands for candidates (U, C) that are not stored but drawn when asked for."""
    return np.empty((0, num_candidates), dtype=np.int64)


def notebook(split: Split, num_candidates: int) -> IntArray:
    """(U, C) items, sorted: the negatives that the paper's notebook draws.

    Two passes over all users share one stream of Python's generator, seed 42: the first draws
    C + |own| items a user and removes the user's own, the second draws C of the rest. Both
    depend on the order in which CPython iterates over sets of ints, hence sets here.

    Raises:
        DataError: when a user has too many of the items.

    """
    _check_size(split, num_candidates)
    stream = random.Random(SEED)
    catalogue = list(set(range(len(split.item_ids))))
    outside = []
    for own in _own_items(split):
        drawn = stream.sample(catalogue, num_candidates + len(own))
        outside.append(set(drawn) - set(own.tolist()))
    chosen = [sorted(stream.sample(list(rest), num_candidates)) for rest in outside]
    return np.array(chosen, dtype=np.int64)


def _own_items(split: Split) -> Iterator[IntArray]:
    for start, stop in zip(split.own_indptr[:-1], split.own_indptr[1:], strict=True):
        yield split.own_items[start:stop]


def _check_size(split: Split, num_candidates: int) -> None:
    own_U = np.diff(split.own_indptr)
    most, num_items = int(own_U.max()), len(split.item_ids)
    left, user = num_items - most, str(split.user_ids[own_U.argmax()])
    if not left:
        users = int((own_U == num_items).sum())
        raise DataError(
            f"{users} of the {len(own_U)} users, such as {user!r}, have every one of the "
            f"{num_items} items: none is left to rank a held-out item against, whatever "
            "protocol.num_candidates is; leave such users out, or read a file with more items"
        )
    if left < num_candidates:
        raise DataError(
            f"user {user!r} has {most} of the {num_items} items, so only {left} are left to rank "
            f"against; lower protocol.num_candidates={num_candidates} to {left}"
        )
