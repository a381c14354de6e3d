"""A finished run on this machine: its data, its selected round, the private state of its users."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from client_app.data import Dataset, load_dataset, shard_bounds
from client_app.distribute import shard_key
from client_app.node_config import store_path
from client_app.private_state import Known, PrivateState
from client_app.user_store import UserStore
from conf.tree import Config, ConfigError, build_strategy, from_mapping
from models.types import IntArray, Tensors
from server_app.checkpoint import Checkpoint, load_checkpoint
from server_app.errors import ServerError
from server_app.results import load_result
from server_app.run_folder import read_config
from strategies.base import RecStrategy


@dataclass(frozen=True)
class FinishedRun:
    """What a completed run of a simulation left in its folder, opened for reading."""

    folder: Path
    config: Config
    """With the run's present place, wherever it was made."""
    checkpoint: Checkpoint
    dataset: Dataset
    strategy: RecStrategy
    round: int
    """The selected round."""

    @classmethod
    def opened(cls, folder: Path) -> FinishedRun:
        """The run in ``folder``.

        Raises:
            ConfigError: for a run of a deployment, whose users are on its nodes.
            ServerError: when the run has not completed, or its data is gone.

        """
        load_result(folder)
        config = from_mapping(read_config(folder))
        if config.federation.grid == "deployment":
            raise ConfigError(
                "the users of this run are on its nodes: ask there, fedrecgel recommend "
                "--node-store STORE --user ID"
            )
        config = replace(config, output=str(folder.parent), name=folder.name)
        checkpoint = load_checkpoint(folder)
        if checkpoint.selection.round is None:
            raise ServerError(f"{folder} has no checkpoint of the selected round")
        try:
            dataset = load_dataset(config)
        except ValueError as error:
            raise ServerError(str(error)) from None
        strategy: RecStrategy = build_strategy(config)
        return cls(folder, config, checkpoint, dataset, strategy, checkpoint.selection.round)

    @cached_property
    def shared(self) -> Tensors:
        """Shared parameters of the selected round, as they are used on a node."""
        return self.strategy.opened(self.checkpoint.best)

    @property
    def shards(self) -> list[tuple[int, int]]:
        """Users [lo, hi) of each node."""
        count = self.config.federation.num_nodes
        return [shard_bounds(self.dataset.num_users, index, count) for index in range(count)]

    def store(self, shard: int) -> UserStore:
        """The store of a node; the caller closes it.

        Raises:
            ServerError: when it is gone.

        """
        key = shard_key(shard, self.config.federation.num_nodes)
        path = store_path({}, self.config, key)
        if not path.is_file():
            raise ServerError(f"{path} is gone: with it the private state of the run's users")
        return UserStore(path, key)

    def forgotten(self) -> IntArray:
        """Users who are not to be used, ascending."""
        found = [np.empty(0, np.int64)]
        for shard in range(len(self.shards)):
            store = self.store(shard)
            try:
                found.append(store.forgotten())
            finally:
                store.close()
        return np.concatenate(found)

    def private(self, users_U: IntArray) -> tuple[Tensors, npt.NDArray[np.bool_]]:
        """Private state (U, …) of ascending users as of the selected round; who was trained (U,).

        Users who were never trained have the state that they are ranked with.

        Raises:
            ServerError: when a store is gone.
            StoreError: when the round's state is not kept.

        """
        blocks, trained = list[Tensors](), list[npt.NDArray[np.bool_]]()
        for shard, (lo, hi) in enumerate(self.shards):
            part = users_U[(users_U >= lo) & (users_U < hi)]
            if not len(part):
                continue
            store = self.store(shard)
            try:
                blocks.append(self.state(store).block(part, self.round, self.known))
                trained.append(store.read(self.checkpoint.run_id, part, self.round)[0])
            finally:
                store.close()
        block = {n: torch.cat([b[n] for b in blocks]) for n in blocks[0]}
        return block, np.concatenate(trained)

    def state(self, store: UserStore) -> PrivateState:
        """The private state of a node's users."""
        return PrivateState(
            self.strategy,
            store,
            self.checkpoint.run_id,
            self.config.seed,
            self.dataset.num_items,
            unknown_run="refuse",
        )

    @property
    def known(self) -> Known:
        """What is known of users who were not trained."""
        return Known(self.shared, self.dataset.history)
