"""Recommendations on the node's own machine: no server, no network.

For a trained user the node's private state and the shared parameters received last; for one
with a history but without a state a cold start; for anybody else what is popular.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from client_app.cold_start import STEPS, cold_start, identity_of
from client_app.data import Dataset
from client_app.node_folder import read_shard
from client_app.private_state import layout_of
from client_app.received import Received
from client_app.recommend import best_items
from client_app.shard import load_new_users, load_shard
from client_app.store_file import StoreError
from client_app.user_store import UserStore
from conf.tree import Config, build_strategy, from_json
from models.types import History, IntArray, Tensors
from strategies.base import RecStrategy

Scores = npt.NDArray[Any]
"""Of all items (I,)."""
Source = Literal["private embedding", "cold start", "popularity"]


@dataclass(frozen=True)
class Suggestions:
    """A user's list, best first, and what it rests on."""

    user: str
    run_id: str
    round: int
    """Round of the shared parameters."""
    source: Source
    seen: int
    """Items of the user's history, which are left out."""
    items: list[tuple[str, str | None, float]]
    """Item id, title where known, score."""


@dataclass(frozen=True)
class Device:
    """One node's files, opened for use on the spot."""

    folder: Path
    store: UserStore
    run_id: str
    received: Received
    shared: Tensors
    """The parameters received, as they are used."""
    cfg: Config
    strategy: RecStrategy
    dataset: Dataset

    @classmethod
    def opened(cls, store_path: Path, folder: Path, run_id: str | None = None) -> Device:
        """The files of a node: its store and its data folder; the newest run unless one is named.

        Raises:
            StoreError: when the store is not there or has received nothing.
            DataError: for a folder that is not a node's.

        """
        if not store_path.is_file():
            raise StoreError(f"{store_path}: there is no such store")
        store = UserStore(store_path, read_shard(folder).shard_key)
        try:
            return cls._of(store, folder, run_id)
        except BaseException:
            store.close()
            raise

    @classmethod
    def _of(cls, store: UserStore, folder: Path, run_id: str | None) -> Device:
        chosen = run_id or store.newest_run()
        received = None if chosen is None else store.received(chosen, "model")
        if chosen is None or received is None:
            raise StoreError(f"{store.path}: no parameters were received yet: take part in a run")
        cfg = from_json(received.config_json)
        strategy: RecStrategy = build_strategy(cfg)
        dataset = load_shard(folder, cfg)
        opened = strategy.opened(received.tensors)
        for name in strategy.model.item_tables:
            items = len(opened[name])
            if items != dataset.num_items:
                raise StoreError(
                    f"{store.path}: run {chosen} was of {items} items, the catalogue in {folder} "
                    f"has {dataset.num_items}: take part in a run with this catalogue"
                )
        store.check_run(chosen, layout_of(strategy, dataset.num_items))
        return cls(folder, store, chosen, received, opened, cfg, strategy, dataset)

    def __enter__(self) -> Self:
        """For ``with``."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Close the store."""
        self.store.close()

    def suggest(self, user: str, k: int, steps: int = STEPS) -> Suggestions:
        """The ``k`` best items for a user by raw id, without those of the user's history."""
        index, history = self._known(user)
        source, scores_I = self._scores(user, index, history, steps)
        best = best_items(scores_I, history, k)
        return Suggestions(
            user, self.run_id, self.received.round, source, len(history), self._named(best)
        )

    def index_of(self, user: str) -> int | None:
        """Global index of a raw id that the federation knows and has not forgotten."""
        assert self.dataset.hosted is not None
        rows = np.flatnonzero(self.dataset.user_ids == user)
        index = int(self.dataset.hosted[rows[0]]) if len(rows) else None
        return None if index is None or index in self.store.forgotten() else index

    def _known(self, user: str) -> tuple[int | None, IntArray]:
        """Index and distinct items of a user; held-out items are part of the past here."""
        index = self.index_of(user)
        if index is None:
            new = load_new_users(self.folder, self.cfg).get(user, np.empty(0, np.int64))
            return None, np.unique(new)
        return index, np.union1d(self.dataset.train_of(index), self.dataset.heldout_of(index))

    def _scores(
        self, user: str, index: int | None, history: IntArray, steps: int
    ) -> tuple[Source, Scores]:
        if index is not None and (private := self._private(index)) is not None:
            assert index is not None
            known = self.dataset.history(np.array([index]))
            return "private embedding", self._scored(private, known)
        if not len(history):
            return "popularity", self._item_counts()
        identity = identity_of(user) if index is None else index
        private = cold_start(self.strategy, self.shared, history, self.cfg, identity, steps)
        known = History(history, np.array([len(history)]))
        return "cold start", self._scored(private, known)

    def _private(self, index: int) -> Tensors | None:
        """The user's state as of the round of the parameters; None for an untrained user."""
        has, data = self.store.read(self.run_id, np.array([index]), self.received.round)
        if not has[0]:
            return None
        layout = layout_of(self.strategy, self.dataset.num_items)
        block = layout.unpack(layout.from_bytes(data))
        return {name: tensor[0] for name, tensor in block.items()}

    def _scored(self, private: Tensors, history: History) -> Scores:
        block = {n: t[None] for n, t in private.items()}
        scores_UI = self.strategy.scores_all(self.shared, block, history)
        found: Scores = scores_UI[0].double().numpy()
        return found

    def _item_counts(self) -> IntArray:
        """Interactions of the federation with each item; of this node where that is unknown."""
        counts = self.store.received(self.run_id, "popularity")
        if counts is not None:
            received: IntArray = counts.tensors["item_counts"].numpy()
            return received
        assert self.dataset.hosted is not None
        return self.dataset.item_counts(self.dataset.hosted)

    def _named(self, best: list[tuple[int, float]]) -> list[tuple[str, str | None, float]]:
        ids, titles = self.dataset.item_ids, self.dataset.titles
        return [
            (str(ids[item]), None if titles is None else str(titles[item]) or None, score)
            for item, score in best
        ]
