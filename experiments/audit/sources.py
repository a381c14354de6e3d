"""Uploads to be judged: those that a run recorded, and those of local training made again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from client_app.distribute import shard_key
from client_app.engine import train_users
from client_app.node_config import store_path
from client_app.private_rows import RowBlock
from client_app.private_state import Known, PrivateState
from conf.tree import ConfigError, from_mapping
from experiments.audit.upload import Facts, Upload
from models.rng import Role, derive_rng
from models.types import IntArray, SumOfUpdates, Tensors
from server_app.cli_finished import FinishedRun
from server_app.run_folder import read_config
from server_app.uplink_record import SeenUpload, load_round, recorded_rounds
from strategies.from_history import BlockOfOne, Remembering

GROUPS = 0
"""Index of the audit's stream that draws groups of users."""


@dataclass(frozen=True)
class Source:
    """An upload and whose it is of; the latter only to judge the attacks."""

    upload: Upload
    users_U: IntArray
    replayed: bool


class _FirstState(PrivateState):
    """Everybody as before their first training."""

    def rows(self, users: IntArray, as_of_round: int, known: Known | None = None) -> RowBlock:
        return self._initial(users, known)


def opened(folder: Path) -> FinishedRun:
    """The run in ``folder``.

    Raises:
        ConfigError: for runs whose uploads are not here, or cannot be read by their server.
        ServerError: as ``FinishedRun.opened``.

    """
    if from_mapping(read_config(folder)).federation.grid == "deployment":
        raise ConfigError(
            f"{folder.name}: a deployment's uploads are not recorded, and its users are on its "
            "nodes, so that training cannot be made again here; audit a simulation with the same "
            "settings"
        )
    run = FinishedRun.opened(folder)
    if any(not t.dtype.is_floating_point for t in run.checkpoint.best.values()):
        raise ConfigError(
            f"{run.folder.name}: its server sees ciphertexts, which it has no key for; there is "
            "nothing for these attacks to work on"
        )
    return run


def hindrance(run: FinishedRun) -> str | None:
    """Why local training of the run cannot be made again; None where it can."""
    if run.strategy.personal_template(run.checkpoint.best):
        return "its server sends users tensors of their own, which it does not keep"
    count = run.config.federation.num_nodes
    for shard in range(count):
        path = store_path({}, run.config, shard_key(shard, count))
        if not path.is_file():
            return f"{path} is gone, with it the private state of the run's users"
    return None


def available_users(run: FinishedRun) -> IntArray:
    """Users who are not to be left out, ascending."""
    everybody = np.arange(run.dataset.num_users)
    return np.setdiff1d(everybody, run.forgotten())


def facts_of(run: FinishedRun) -> Facts:
    """What is public about a run."""
    strategy, everybody = run.strategy, np.arange(run.dataset.num_users)
    return Facts(
        num_items=run.dataset.num_items,
        negatives=strategy.config.num_negatives,
        moves=strategy.update_kind == "delta" or strategy.needs_individual_updates,
        dense=strategy.dense_updates,
        closed_form=isinstance(strategy, BlockOfOne),
        items_per_user=float(run.dataset.history(everybody).lengths_U.mean()),
    )


def draw_groups(run: FinishedRun, size: int, count: int, seed: int) -> list[IntArray]:
    """``count`` disjoint groups of ``size`` users, or as many as there are users for.

    Raises:
        ConfigError: when there are fewer users than one group has.

    """
    everybody = available_users(run)
    if size > len(everybody):
        raise ConfigError(f"--users-per-sum {size}: the run has {len(everybody)} users")
    order = derive_rng(seed, Role.AUDIT, GROUPS).permutation(everybody)
    groups = min(count, len(everybody) // size)
    return [np.sort(order[n * size : (n + 1) * size]) for n in range(groups)]


def replayed(run: FinishedRun, users_U: IntArray) -> Source:
    """What these users would upload in the round after the selected one, summed.

    They train from their own private state of the selected round; those of methods that upload
    only what the server's sums lack, as for the first time. Where a server sees each user's
    upload, there has to be one user.

    Raises:
        TrainError, StoreError, ServerError: as local training does.

    """
    shared = run.checkpoint.best
    total = SumOfUpdates(run.strategy.summed_template(shared))
    single: Tensors | None = None
    for shard, (lo, hi) in enumerate(run.shards):
        part = users_U[(users_U >= lo) & (users_U < hi)]
        if not len(part):
            continue
        store = run.store(shard)
        try:
            trained = train_users(
                run.strategy,
                shared,
                part,
                round_=run.round + 1,
                base_round=run.round,
                dataset=run.dataset,
                state=_state(run, run.state(store)),
                cfg=run.config,
            )
        finally:
            store.close()
        if trained.individual is not None:
            single = {n: t[0] for n, t in trained.individual.tensors.items()}
        else:
            total.add(trained.update)
    if single is not None:
        upload = Upload(_moved(single, shared), 1, run.round + 1, shared)
    else:
        made = total.result()
        rows = made.row_weights or {}
        upload = Upload(made.tensors, len(users_U), run.round + 1, shared, rows)
    return Source(upload, users_U, replayed=True)


def recorded(run: FinishedRun, at_most: int) -> Iterator[Source]:
    """The first uploads of every round that the run recorded, by nodes or users in order."""
    for number in recorded_rounds(run.folder):
        seen = load_round(run.folder, number)
        found = (one for node in seen.uploads for one in _sources(node, number, seen.shared))
        yield from islice(found, at_most)


def _sources(seen: SeenUpload, number: int, shared: Tensors) -> Iterator[Source]:
    for row, user in enumerate(seen.individual_U.tolist()):
        single = {n: t[row] for n, t in seen.individual.items()}
        upload = Upload(_moved(single, shared), 1, number, shared)
        yield Source(upload, np.array([user]), replayed=False)
    if not len(seen.individual_U):
        upload = Upload(seen.tensors, seen.num_users, number, shared, seen.row_weights)
        yield Source(upload, seen.users_U, replayed=False)


def _moved(table: Tensors, shared: Tensors) -> Tensors:
    """Tables of a user's own as movements of the shared ones that they began as."""
    return {
        n: t - shared[n] if n in shared and t.shape == shared[n].shape else t
        for n, t in table.items()
    }


def _state(run: FinishedRun, state: PrivateState) -> PrivateState:
    if not isinstance(run.strategy, Remembering):
        return state
    return _FirstState(
        run.strategy,
        state.store,
        state.run_id,
        run.config.seed,
        run.dataset.num_items,
        unknown_run="refuse",
    )


def true_items(run: FinishedRun, users_U: Sequence[int] | IntArray) -> torch.Tensor:
    """Which items any of the users interacted with in training (I,), bool."""
    history = run.dataset.history(np.asarray(users_U))
    found_I = torch.zeros(run.dataset.num_items, dtype=torch.bool)
    found_I[torch.from_numpy(history.items_S)] = True
    return found_I
