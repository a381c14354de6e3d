"""Leave one out: which rows train, which are held out, and who is left in the catalogue.

The rules are those of the paper's notebook, and with ``duplicates`` and ``validation`` those
of the strict protocol:

1. repeated (user, item) rows are kept, or only the latest or earliest of them is;
2. users with fewer than ``min_interactions`` rows are dropped, once; users and items left
   are renumbered in their order;
3. a user's rows are ranked by time, the latest first; among equal times the lowest item
   comes first, then the earlier line of the file, or (``ties=first_line``) the earlier line
   at once. The first is the test row, with
   ``validation`` the second is the validation row, all others train.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from client_app.errors import DataError
from client_app.interactions import Interactions, Strings
from conf.tree import ProtocolConfig
from models.types import IntArray

NO_ITEM = -1


@dataclass(frozen=True)
class Split:
    """Training rows as compressed rows: user u trains on train_items[indptr[u]:indptr[u + 1]].

    ``train_items`` is sorted within a user and keeps repeats. ``test_U`` and ``validation_U``
    are item indices, -1 for none. ``own_items`` and ``own_indptr`` are the distinct items
    each user has at all, sorted.
    """

    user_ids: Strings
    item_ids: Strings
    indptr: IntArray
    train_items: IntArray
    test_U: IntArray
    validation_U: IntArray
    own_indptr: IntArray
    own_items: IntArray
    counts: Mapping[str, int]


def split(data: Interactions, protocol: ProtocolConfig, name: str) -> Split:
    """Apply the protocol; ``name`` is the data set's, for messages.

    Raises:
        DataError: when no user has enough rows.

    """
    first, repeated = _first_of_repeats(data, protocol.duplicates)
    kept = np.flatnonzero(first)
    kept, dropped = _frequent(data.users, kept, protocol.min_interactions)
    if not len(kept):
        raise DataError(
            f"dataset={name}: no user has protocol.min_interactions={protocol.min_interactions} "
            f"or more rows"
        )
    users_left, users = np.unique(data.users[kept], return_inverse=True)
    items_left, items = np.unique(data.items[kept], return_inverse=True)
    rank = _rank(users, items, data.times[kept], protocol.ties)
    counts = {**data.counts, "repeated_rows": repeated, "users_dropped": dropped}
    return _assemble(
        (users, items, rank),
        (data.user_ids[users_left], data.item_ids[items_left]),
        protocol.validation,
        {**counts, "rows_used": len(kept)},
    )


def kept_rows(data: Interactions, protocol: ProtocolConfig) -> IntArray:
    """Rows (positions) of the users that the protocol keeps, repeats included."""
    first, _ = _first_of_repeats(data, protocol.duplicates)
    kept, _ = _frequent(data.users, np.flatnonzero(first), protocol.min_interactions)
    return np.flatnonzero(np.isin(data.users, data.users[kept]))


def split_numbered(data: Interactions, protocol: ProtocolConfig) -> Split:
    """The same for data whose users and items are chosen and numbered already: none is dropped."""
    first, repeated = _first_of_repeats(data, protocol.duplicates)
    users, items = data.users[first], data.items[first]
    counts = {**data.counts, "repeated_rows": repeated, "rows_used": len(users)}
    rank = _rank(users, items, data.times[first], protocol.ties)
    ids = (data.user_ids, data.item_ids)
    return _assemble((users, items, rank), ids, protocol.validation, counts)


def _first_of_repeats(data: Interactions, rule: str) -> tuple[npt.NDArray[np.bool_], int]:
    """Which rows stay under the rule, and how many rows repeat an earlier pair."""
    pairs = data.users * len(data.item_ids) + data.items
    stays = np.ones(len(pairs), dtype=np.bool_)
    repeated = len(pairs) - len(np.unique(pairs))
    if not repeated or rule == "keep":
        return stays, repeated
    # Later in time, and at equal times later in the file, is later.
    order = np.lexsort((np.arange(len(pairs)), data.times, pairs))
    changes = pairs[order][1:] != pairs[order][:-1]
    wanted = np.append(changes, True) if rule == "last" else np.append(True, changes)
    stays[order] = wanted
    return stays, repeated


def _frequent(users: IntArray, kept: IntArray, least: int) -> tuple[IntArray, int]:
    """Rows of users with at least ``least`` rows, and how many users are dropped."""
    rows_U = np.bincount(users[kept], minlength=1)
    dropped = int(((rows_U > 0) & (rows_U < least)).sum())
    return kept[rows_U[users[kept]] >= least], dropped


def _rank(users: IntArray, items: IntArray, times: IntArray, ties: str) -> IntArray:
    """Place of each row within its user: 0 is the latest, ties by the rule, then by line."""
    second = items if ties == "lowest_item" else np.zeros_like(items)
    order = np.lexsort((np.arange(len(users)), second, -times, users))
    starts = _indptr(users, int(users.max()) + 1)
    rank = np.empty(len(users), dtype=np.int64)
    rank[order] = np.arange(len(users)) - starts[users[order]]
    return rank


def _assemble(
    rows: tuple[IntArray, IntArray, IntArray],
    ids: tuple[Strings, Strings],
    validation: bool,
    counts: Mapping[str, int],
) -> Split:
    users, items, rank = rows
    num_users = len(ids[0])
    rows_U = np.bincount(users, minlength=num_users)
    # One training row at least stays, so that a user with too few rows holds nothing out.
    is_test = (rank == 0) & (rows_U[users] > 1)
    is_validation = (rank == 1) & (rows_U[users] > 2) & validation
    train = ~(is_test | is_validation)
    order = np.lexsort((items[train], users[train]))
    pairs = np.unique(users * len(ids[1]) + items)
    own_users, own_items = np.divmod(pairs, len(ids[1]))
    return Split(
        *ids,
        indptr=_indptr(users[train], num_users),
        train_items=items[train][order].astype(np.int64),
        test_U=_one_each(users, items, is_test, num_users),
        validation_U=_one_each(users, items, is_validation, num_users),
        own_indptr=_indptr(own_users, num_users),
        own_items=own_items,
        counts=counts,
    )


def _one_each(
    users: IntArray, items: IntArray, chosen: npt.NDArray[np.bool_], num_users: int
) -> IntArray:
    held = np.full(num_users, NO_ITEM, dtype=np.int64)
    held[users[chosen]] = items[chosen]
    return held


def _indptr(users: IntArray, num_users: int) -> IntArray:
    return np.append(0, np.cumsum(np.bincount(users, minlength=num_users))).astype(np.int64)
