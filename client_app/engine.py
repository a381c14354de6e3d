"""Local training of a node's part of the cohort, and the sum of its updates.

The order of summation is fixed: users by ascending number of samples, then by index; the
updates of a block in that order (by the strategy), then the blocks one after another. So a
sum is the same to the bit for the same users, block size and torch threads, however many
workers train the blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

import numpy as np
import torch
from torch import Tensor

from client_app.attacks.base import Change, Round
from client_app.data import Dataset
from client_app.device import device_of, moved, on_cpu
from client_app.failures import TrainError, named, stage
from client_app.negatives import block_samples
from client_app.parallel import in_order
from client_app.private_rows import RowBlock
from client_app.private_state import Known, PrivateState
from client_app.pseudo_items import PseudoItems, pseudo_items_of
from client_app.user_updates import after_steps, user_update_steps
from conf.tree import Config
from models.rng import Role, UserStreams, derive_rng
from models.tables import is_finite
from models.types import (
    CohortResult,
    IndividualUpdates,
    IntArray,
    Samples,
    SumOfUpdates,
    Tensors,
    Update,
)
from strategies.base import RecStrategy
from strategies.by_user import UserUpdates, joined, of_users
from strategies.individual import gathered

BlockUpdate = Callable[
    [RecStrategy, Tensors, Tensors, Sequence[Sequence[Samples]], Sequence[np.random.Generator]],
    CohortResult,
]


@dataclass(frozen=True)
class Trained:
    """``rows`` (U, P) are the new private rows of ``users`` (U,); the rest is summed over them."""

    users: IntArray
    rows: RowBlock
    update: Update
    metrics: dict[str, float]
    individual: IndividualUpdates | None = None
    """Each user's upload, by ascending user, where the strategy needs it."""
    by_user: UserUpdates | None = None
    """Each user's update, by ascending user, for a server that defends itself; then no sum."""


def train_users(
    strategy: RecStrategy,
    shared: Tensors,
    users: IntArray,
    *,
    round_: int,
    base_round: int,
    dataset: Dataset,
    state: PrivateState,
    cfg: Config,
    personal: Mapping[int, Tensors] | None = None,
    noise_std: float = 0.0,
) -> Trained:
    """Train distinct users from their state as of ``base_round``; stores nothing.

    ``personal`` has, by user, tensors that join the shared ones: such users train by themselves.
    ``noise_std`` is of the noise that each user adds, where the configuration has users add some.

    Raises:
        TrainError: naming the users and the stage that failed.
        DeviceError: when the configured device is not there.
        StoreError: when the private state cannot be read.
        ValueError: for no users.

    """
    if not len(users):
        raise ValueError("there is no user to train")
    users = users[np.lexsort((users, _sizes(users, dataset)))]
    update_block, block_users = _engine(strategy, cfg)
    pseudo = None
    if cfg.privacy.pseudo_items is not None:
        pseudo = pseudo_items_of(cfg, state.store.path, strategy.config.num_negatives)
    device = device_of(cfg.engine.device)
    opened = strategy.opened(shared)
    rows_UP = state.rows(users, base_round, Known(opened, dataset.history))
    on_device = moved(opened, device)

    def local(part: slice, change: Change | None = None) -> CohortResult:
        block = users[part]
        streams = _Streams(cfg.seed, block, round_)
        with stage("drawing samples", block):
            epochs_U = draw_epochs(strategy, dataset, cfg, block, round_, pseudo)
        if change is not None:
            epochs_U = [tuple(map(change, epochs)) for epochs in epochs_U]
        with stage("training", block):
            private = moved(state.layout.unpack(rows_UP[part]), device)
            own = moved((personal or {}).get(int(block[0]), {}), device)
            return update_block(strategy, on_device | own, private, epochs_U, streams)

    def again(user: int, change: Change) -> Update:
        (place,) = np.flatnonzero(users == user)
        return local(slice(place, place + 1), change).update

    scene = Round(cfg, strategy, dataset, round_, opened, again)
    steps = user_update_steps(strategy, cfg, scene, noise_std)
    if personal or steps or cfg.defence.by_user:
        block_users = 1

    def train(part: slice) -> CohortResult:
        result = local(part)
        return after_steps(result, users[part], round_, steps) if steps else result

    total, metrics = SumOfUpdates(strategy.summed_template(on_device)), dict[str, float]()
    individual, by_user = list[IndividualUpdates](), list[UserUpdates]()
    new_rows_UP = np.empty_like(rows_UP)
    parts = blocks(_sizes(users, dataset), block_users)
    results = in_order(train, parts, cfg.engine.workers, cfg.engine.threads)
    for part, result in zip(parts, results, strict=True):
        new_rows_UP[part] = state.layout.pack(result.private)
        _check_rows(new_rows_UP[part], users[part], strategy)
        if cfg.defence.by_user:
            by_user.append(of_users(users[part], [on_cpu(result.update)], strategy.row_tables))
        total.add(result.update)
        if result.individual is not None:
            uploads = moved(result.individual, torch.device("cpu"))
            individual.append(IndividualUpdates(users[part], uploads))
        for name, value in result.metrics.items():
            metrics[name] = metrics.get(name, 0.0) + value
    update, single = on_cpu(total.result()), gathered(individual) if individual else None
    _check_finite(update.tensors | ({} if single is None else single.tensors), users, strategy)
    if by_user:
        own = joined(by_user)
        return Trained(users, new_rows_UP, Update({}, update.weight), metrics, None, own)
    return Trained(users, new_rows_UP, strategy.sealed(update), metrics, single)


def _cohort(
    strategy: RecStrategy,
    shared: Tensors,
    private_block: Tensors,
    epochs_U: Sequence[Sequence[Samples]],
    rngs: Sequence[np.random.Generator],
) -> CohortResult:
    return strategy.cohort_update(shared, private_block, epochs_U, rngs)


_loop: BlockUpdate = RecStrategy.cohort_update
"""The contract's own definition: ``client_update`` user by user."""


def _engine(strategy: RecStrategy, cfg: Config) -> tuple[BlockUpdate, int]:
    """How a block is trained and its number of users; one for ``loop``, to name who failed."""
    return (_loop, 1) if cfg.engine.name == "loop" else (_cohort, block_size(strategy, cfg))


def block_size(strategy: RecStrategy, cfg: Config) -> int:
    """Users of a block on average in the cohort engine."""
    return cfg.engine.block_users or strategy.model.block_users


def _sizes(users: IntArray, dataset: Dataset) -> IntArray:
    return dataset.train_lengths(users)


def blocks(sizes_U: IntArray, block_users: int) -> list[slice]:
    """Cut users, by ascending size, into blocks of about equal sums of sizes.

    There are as many as blocks of ``block_users`` users would be; 1 gives single users.
    """
    count = -(-len(sizes_U) // block_users)
    if count == 1:
        return [slice(0, len(sizes_U))]
    if block_users == 1:
        return [slice(user, user + 1) for user in range(count)]
    sums_U = np.cumsum(sizes_U)
    shares = np.arange(1, count) * int(sums_U[-1]) / count
    cuts = np.unique([0, *np.searchsorted(sums_U, shares, side="right"), len(sizes_U)])
    return [slice(int(start), int(stop)) for start, stop in pairwise(cuts)]


class _Streams(Sequence[np.random.Generator]):
    """The strategy's own stream of each user, made when asked for: few strategies draw."""

    def __init__(self, seed: int, users: IntArray, round_: int) -> None:
        self._seed, self._users, self._round = seed, users, round_
        self._made: dict[int, np.random.Generator] = {}

    def __len__(self) -> int:
        return len(self._users)

    @overload
    def __getitem__(self, index: int) -> np.random.Generator: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[np.random.Generator]: ...
    def __getitem__(
        self, index: int | slice
    ) -> np.random.Generator | Sequence[np.random.Generator]:
        if isinstance(index, slice):
            return _Streams(self._seed, self._users[index], self._round)
        user = int(self._users[index])
        if user not in self._made:
            self._made[user] = derive_rng(self._seed, Role.STRATEGY, user, self._round)
        return self._made[user]


def draw_epochs(
    strategy: RecStrategy,
    dataset: Dataset,
    cfg: Config,
    users_U: IntArray,
    round_: int,
    pseudo: PseudoItems | None = None,
) -> list[tuple[Samples, ...]]:
    """Samples of each local epoch for each user, from the user's own stream of round and epoch."""
    config, rule = strategy.config, cfg.protocol.negatives
    epochs = []
    for epoch in range(config.local_epochs):
        streams = UserStreams(cfg.seed, Role.TRAIN, round_, epoch)
        count = config.num_negatives
        epochs.append(block_samples(dataset, users_U, rule, count, streams, pseudo))
    return list(zip(*epochs, strict=True))


def _check_rows(rows_UP: RowBlock, users: IntArray, strategy: RecStrategy) -> None:
    finite_U = np.isfinite(rows_UP).all(axis=1)
    if not finite_U.all():
        raise TrainError(
            f"{named(users[~finite_U])}: training: private parameters became infinite or NaN; "
            f"lower {_local_rates(strategy)}"
        )


def _check_finite(tensors: Mapping[str, Tensor], users: IntArray, strategy: RecStrategy) -> None:
    for name, tensor in tensors.items():
        if not is_finite(tensor):
            raise TrainError(
                f"{named(users)}: training: the update of {name!r} is not finite; "
                f"lower {_local_rates(strategy)}"
            )


def _local_rates(strategy: RecStrategy) -> str:
    """The learning rates of local training with their values, or those the strategy has."""
    rates = {
        f.name: getattr(strategy.config, f.name)
        for f in dataclasses.fields(strategy.config)
        if f.name.endswith(("_lr", "_lr_factor")) and f.name != "server_lr"
    }
    shown = [f"strategy.{name}={rate:g}" for name, rate in rates.items()]
    return " or ".join(shown) or "the learning rates"
