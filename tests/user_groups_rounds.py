"""Made-up users in groups, and rounds of a strategy over users that are given by their items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from models.mf import ITEM
from models.types import IntArray, Samples, Tensors
from strategies.base import RecStrategy

USERS, ITEMS, GROUPS = 60, 33, 4


def made_up(least: float, more: float) -> list[IntArray]:
    """Four groups of users with groups of items of their own, and a little of everything.

    A user has an item with chance ``least``, and ``more`` on top within its group.
    """
    rng = np.random.default_rng(0)
    chance_UI = least + more * (np.arange(USERS)[:, None] % GROUPS == np.arange(ITEMS) % GROUPS)
    has_UI = rng.random((USERS, ITEMS)) < chance_UI
    has_UI[np.arange(USERS), np.arange(USERS) % ITEMS] = True
    return [np.flatnonzero(row) for row in has_UI]


def cohorts_of(fraction: float, count: int) -> list[IntArray]:
    """A sample of the made-up users for each of so many rounds."""
    rng, size = np.random.default_rng(1), round(fraction * USERS)
    return [np.sort(rng.choice(USERS, size, replace=False)) for _ in range(count)]


def once(own: Sequence[IntArray], num_items: int) -> Any:
    """The users' rows of 0 and 1, sparse (U, I)."""
    from scipy.sparse import csr_array

    indptr = np.cumsum([0, *map(len, own)])
    entries = (np.ones(indptr[-1]), np.concatenate(own), indptr)
    return csr_array(entries, shape=(len(own), num_items))


def rounds(
    made: RecStrategy, own: Sequence[IntArray], shared: Tensors, cohorts: Sequence[IntArray]
) -> tuple[Tensors, Tensors]:
    """Shared parameters and private rows after rounds of these users, in ``shared``'s precision."""
    items_ID = shared[ITEM]
    state, row = made.init_server_state(shared), made.start_private(len(items_ID), 0, 0)
    private = {n: torch.stack([t.to(items_ID)] * len(own)) for n, t in row.items()}
    for users_U in cohorts:
        epochs_U = [[Samples(own[u], np.ones(len(own[u]), np.float32))] for u in users_U]
        rngs = [np.random.default_rng(0)] * len(users_U)
        block = {n: t[torch.from_numpy(users_U)] for n, t in private.items()}
        result = made.cohort_update(shared, block, epochs_U, rngs)
        for name, rows in result.private.items():
            private[name][torch.from_numpy(users_U)] = rows
        shared, state = made.server_update(shared, made.combined([result.update], shared), state)
    return shared, private
