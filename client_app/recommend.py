"""Top items of one user, scored on the user's node."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from client_app.data import Dataset
from client_app.private_state import Known, PrivateState
from client_app.user_store import UserStore
from models.types import IntArray, Tensors
from strategies.base import RecStrategy


def recommend(
    strategy: RecStrategy,
    shared: Tensors,
    dataset: Dataset,
    store: UserStore,
    run_id: str,
    user: int,
    round_: int,
    k: int,
    *,
    seed: int,
    hide_heldout: bool = False,
) -> list[tuple[int, float]]:
    """The ``k`` best items (index, score) with the user's state as of a round, best first.

    Items of the user's training and validation rows are left out. The held-out test item, which
    the model has not seen as the user's, stays in unless ``hide_heldout``. Ties go to the lower
    index. Fewer than ``k`` are returned when the catalogue has no more.

    Raises:
        ValueError: for a user or a ``k`` out of range.
        StoreError: when the store does not know the run, or no longer keeps that round's state.

    """
    if not 0 <= user < dataset.num_users:
        raise ValueError(f"user index {user} is not in 0..{dataset.num_users - 1}")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    state = PrivateState(strategy, store, run_id, seed, dataset.num_items, unknown_run="refuse")
    users = np.array([user])
    opened, history = strategy.opened(shared), dataset.history(users)
    private = state.block(users, round_, Known(opened, dataset.history))
    scores_UI = strategy.scores_all(opened, private, history)
    scores_I = scores_UI[0].double().numpy()
    return best_items(scores_I, known_items(dataset, user, hide_heldout), k)


def best_items(scores_I: npt.NDArray[Any], left_out: IntArray, k: int) -> list[tuple[int, float]]:
    """The ``k`` best items (index, score) by descending score, ties to the lower index."""
    items = np.setdiff1d(np.arange(len(scores_I)), left_out)
    best = items[np.argsort(-scores_I[items].astype(float), kind="stable")[:k]]
    return [(int(item), float(scores_I[item])) for item in best]


def known_items(dataset: Dataset, user: int, heldout: bool = False) -> IntArray:
    """Distinct items of the user's training and validation rows, ascending.

    ``heldout``: and of the test row.
    """
    validation = dataset.heldout(np.array([user]))[:, 1]
    held = dataset.heldout_of(user) if heldout else validation[validation >= 0]
    return np.union1d(dataset.train_of(user), held)
