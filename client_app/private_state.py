"""Private parameters of a run's users: from the store, or their initial values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch

from client_app.private_rows import RowBlock, RowLayout
from client_app.user_store import UserStore
from models.types import History, IntArray, Tensors
from strategies.base import RecStrategy

UnknownRun = Literal["start", "refuse", "report"]


@dataclass(frozen=True)
class Known:
    """What a node knows of users who were not trained yet."""

    shared: Tensors
    """Shared parameters of the round, as they are used on a node."""
    history: Callable[[IntArray], History]
    """Training items of users."""


def layout_of(strategy: RecStrategy, num_items: int) -> RowLayout:
    """How a user's private state lies in a row."""
    return RowLayout.of(strategy.init_private(num_items, np.random.default_rng(0)))


class PrivateState:
    """Reads the private tensors of a run's users as of a round.

    A user that was not trained yet has the initial state drawn from its own stream, so that
    it does not depend on the node or on when it is first asked for.
    """

    def __init__(
        self,
        strategy: RecStrategy,
        store: UserStore,
        run_id: str,
        seed: int,
        num_items: int,
        *,
        unknown_run: UnknownRun = "start",
    ) -> None:
        """``unknown_run``: what to do when the store does not know the run (StoreError: refuse)."""
        self.store = store
        self.run_id = run_id
        self._strategy = strategy
        self._seed, self._num_items = seed, num_items
        self.layout = layout_of(strategy, num_items)
        self.new_run = not store.has_run(run_id)
        """The store knew nothing of this run before."""
        if self.new_run and unknown_run == "start":
            store.start_run(run_id, self.layout)
        if unknown_run != "report" or not self.new_run:
            store.check_run(run_id, self.layout)

    def rows(self, users: IntArray, as_of_round: int, known: Known | None = None) -> RowBlock:
        """Rows (U, P) of users (U,) as of a round.

        ``known`` is what users who were not trained yet may start from; without it they are as
        they were drawn.

        Raises:
            StoreError: for a round whose state is no longer kept, or an unreadable file.

        """
        has_row_U, data = self.store.read(self.run_id, users, as_of_round)
        rows_UP = np.empty((len(users), self.layout.width), dtype=self.layout.dtype)
        rows_UP[has_row_U] = self.layout.from_bytes(data)
        if not has_row_U.all():
            rows_UP[~has_row_U] = self._initial(users[~has_row_U], known)
        return rows_UP

    def block(self, users: IntArray, as_of_round: int, known: Known | None = None) -> Tensors:
        """The same as named tensors with a leading user dimension."""
        return self.layout.unpack(self.rows(users, as_of_round, known))

    def _initial(self, users: IntArray, known: Known | None) -> RowBlock:
        start = self._strategy.start_private
        drawn = [start(self._num_items, self._seed, int(user)) for user in users]
        block = {n: torch.stack([p[n] for p in drawn]) for n in self.layout.names}
        if known is not None:
            history = partial(known.history, users)
            block = self._strategy.first_private(known.shared, block, history)
        return self.layout.pack(block)
