"""The contract of a federated recommendation algorithm: one object, both halves.

A strategy is pure over tensors: what a user does with the shared parameters, what the
server does with the sum of the users' updates, or with each of them. Flower's hooks are in
``strategies.hooks``, records in ``strategies.wire``; a new algorithm touches neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from models import optim
from models.base import ScoringModel
from models.history_start import SolvedStart
from models.losses import Loss
from models.rng import Role, derive_rng
from models.types import (
    ClientResult,
    CohortResult,
    History,
    IntArray,
    Samples,
    SumOfUpdates,
    Tensors,
    Update,
)
from strategies.async_config import AsyncConfig
from strategies.checks import Checks
from strategies.hooks import FlowerHooks
from strategies.server_half import ServerHalf


@dataclass(frozen=True)
class StrategyConfig(Checks):
    """Settings every strategy has; a strategy's file extends it with its own."""

    local_epochs: int = 1
    """Passes over freshly drawn samples a round, at least 1."""
    num_negatives: int = 4
    """Training negatives a positive, drawn without replacement for that positive."""
    server_optimiser: optim.OptimiserName = "adam"
    """Optimiser the server keeps over the shared parameters."""
    server_lr: float = 0.001
    """Learning rate of the server's optimiser."""
    async_: AsyncConfig | None = None
    """``async`` in a yaml. None: the server waits for the cohort of a round."""

    def __post_init__(self) -> None:
        self._at_least_one("local_epochs", "num_negatives")
        self._positive("server_lr")


class RecStrategy(ServerHalf, FlowerHooks):
    """Base of all strategies. A subclass gives ``Config``, metadata and the client's update."""

    Config: ClassVar[type[StrategyConfig]] = StrategyConfig
    title: ClassVar[str]
    """Name as in its paper, with the reference (for example an arXiv number)."""
    about: ClassVar[str] = ""
    """What it does, in a line of at most 80 characters."""
    supports_partial_participation: ClassVar[bool] = True
    dense_updates: ClassVar[bool] = False
    """An update also moves item rows that the user has no sample of."""
    users_follow_items: ClassVar[bool] = False
    """A user's vector is made of its items anyway, and none is to be started from."""
    common_start: ClassVar[bool] = False
    """All users start from the same private state."""
    model: ScoringModel
    config: Any

    def __init__(self, config: Any, model: ScoringModel) -> None:
        if not isinstance(config, self.Config):
            raise TypeError(f"{type(self).__name__} needs a {self.Config.__name__}")
        super().__init__()
        self.config = config
        self.model = model
        self.initial_items: Tensors = {}
        """Item tables to start from in place of drawn ones; set before :meth:`init_shared`."""
        self.first_users: SolvedStart | None = None
        """How users who were never trained get their vectors; None: as drawn."""
        self.check()

    def check(self) -> None:
        """Raise ValueError when the model does not suit the strategy."""
        if self.model.scores_from_history:
            raise ValueError("the model scores from users' histories; strategy=feddae gives them")

    @property
    def period(self) -> int:
        """Rounds from one change of the shared parameters to the next."""
        return 1

    @property
    def async_problem(self) -> str | None:
        """Why updates cannot be summed from different versions of the parameters; None: they can.

        A weighted sum must mean the same as a sum, and an old version of the shared parameters
        be all that a device was given.
        """
        if not self.plain_updates:
            return "its updates are not gradients or movements that are added up in the clear"
        if type(self).downlinks is not ServerHalf.downlinks:
            return "it sends users tensors of their own"
        if self.period > 1:
            return f"it changes its parameters every {self.period} rounds"
        return None

    # ---- initial state -------------------------------------------------------------------
    def init_shared(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Initial shared parameters: drawn once by the server, but for ``initial_items``.

        Raises:
            ValueError: for initial items of other names or shapes than the model's.

        """
        drawn = self.model.init_shared(num_items, rng)
        for name, table in self.initial_items.items():
            if name not in drawn or drawn[name].shape != table.shape:
                raise ValueError(f"the model has no item table {name} of shape {list(table.shape)}")
        return {**drawn, **self.initial_items}

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """One user's initial private state: model parameters, optimiser moments, own tables."""
        return self.model.init_private(num_items, rng)

    def start_private(self, num_items: int, seed: int, user: int) -> Tensors:
        """The initial private state of a user in a run, from the stream that it is drawn from."""
        own = () if self.common_start else (user,)
        return self.init_private(num_items, derive_rng(seed, Role.INIT_PRIVATE, *own))

    def solve_first_users(self, ridge: float, gain: float) -> None:
        """Let users who were never trained get their vectors from their items, from now on."""
        self.first_users = SolvedStart(ridge, gain)

    def first_private(
        self, shared: Tensors, private_block: Tensors, history: Callable[[], History]
    ) -> Tensors:
        """The state (U, …) of users who were never trained, from the one that was drawn.

        As drawn, or with vectors solved for from the users' items and ``shared`` as it is now.
        ``history`` is asked for these items where they are needed.
        """
        if self.first_users is None:
            return private_block
        solved = self.first_users.vectors(self.model, shared, history())
        return {**private_block, **{n: t.to(private_block[n]) for n, t in solved.items()}}

    def item_vectors(self, shared: Tensors) -> Tensors:
        """The item tables as the users' vectors meet them in the score."""
        return {n: shared[n] for n in self.model.item_tables}

    def private_parameters(self, private: Tensors) -> Tensors:
        """The part of the private state (or block) that the model scores with."""
        return {n: private[n] for n in self.private_names}

    @cached_property
    def private_names(self) -> tuple[str, ...]:
        """Names of the model's private parameters; found once, as every user's step asks."""
        return tuple(self.model.init_private(1, np.random.default_rng(0)))

    @property
    def has_own_item_parameters(self) -> bool:
        """Whether users are ranked by item parameters that are not everybody's."""
        rng = np.random.default_rng(0)
        one, two = (self.init_private(count, rng) for count in (1, 2))
        return self.personal_evaluation or any(t.shape != two[n].shape for n, t in one.items())

    @property
    def training_loss(self) -> Loss | None:
        """What a user's samples cost by the model's logits, where training descends along that.

        None where it does not: closed forms, or losses with terms of their own.
        """
        return None

    @property
    def row_tables(self) -> frozenset[str]:
        """Tables of a sum of updates that are sent as rows of items where that is smaller."""
        return self.model.item_tables

    # ---- client half ---------------------------------------------------------------------
    def opened(self, shared: Tensors) -> Tensors:
        """Shared parameters as they are used on a node; another form only where encrypted."""
        return shared

    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        """Train one user. ``epochs`` holds the samples of each local epoch.

        Pure: inputs are not modified. ``rng`` is the strategy's own stream for this user
        and round (role STRATEGY). ``shared`` holds the user's personal tensors too, where the
        server sent some (:meth:`downlinks`).
        """
        raise NotImplementedError

    def cohort_update(
        self,
        shared: Tensors,
        private_block: Tensors,
        epochs_U: Sequence[Sequence[Samples]],
        rngs: Sequence[np.random.Generator],
    ) -> CohortResult:
        """Train a ragged block of users; must equal the sum of :meth:`client_update`.

        ``private_block`` has a leading user dimension. The default goes user by user.
        """
        total = SumOfUpdates(self.summed_template(shared))
        results, metrics = list[ClientResult](), dict[str, float]()
        for row, epochs in enumerate(epochs_U):
            private = {name: tensor[row] for name, tensor in private_block.items()}
            result = self.client_update(shared, private, epochs, rngs[row])
            total.add(result.update)
            results.append(result)
            for name, value in result.metrics.items():
                metrics[name] = metrics.get(name, 0.0) + value
        stacked = {n: torch.stack([r.private[n] for r in results]) for n in private_block}
        return CohortResult(total.result(), stacked, metrics, _stacked(results))

    def sealed(self, update: Update) -> Update:
        """The sum over a node's users as it is sent; another form only where encrypted."""
        return update

    def adapt(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> Tensors:
        """One user's private state after a local round in which the shared parameters stay.

        For a user who comes after training. The default trains an epoch at a time, each from the
        shared parameters as given, and drops the updates: a strategy whose ``client_update`` moves
        a local copy of them within an epoch has to override it.
        """
        for samples in epochs:
            private = self.client_update(shared, private, [samples], rng).private
        return private

    # ---- scoring -------------------------------------------------------------------------
    def scores_all(self, shared: Tensors, private_block: Tensors, history: History) -> Tensor:
        """Score the whole catalogue for a block of users without gradients. Returns (U, I).

        ``private_block`` is the whole private state with a leading user dimension, of users who
        may never have been trained; ``history`` has their training items.
        """
        return self.model.scores_all(shared, self.private_parameters(private_block))

    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray, history: History
    ) -> Tensor:
        """Score each user's own candidates without gradients. Returns (U, C)."""
        private = self.private_parameters(private_block)
        with torch.no_grad():
            return self.model.score_candidates(shared, private, items_UC)


def training_metrics(loss: float, samples: Sequence[Samples]) -> dict[str, float]:
    """A user's or a block's summed metrics: loss, and the number of samples trained on."""
    return {"loss": loss, "num_samples": float(sum(len(part) for part in samples))}


def block_metrics(loss: float, epochs_U: Sequence[Sequence[Samples]]) -> dict[str, float]:
    """The same of a block of users."""
    return training_metrics(loss, [samples for epochs in epochs_U for samples in epochs])


def _stacked(results: Sequence[ClientResult]) -> Tensors | None:
    uploads = [r.individual for r in results if r.individual is not None]
    if not uploads:
        return None
    return {name: torch.stack([upload[name] for upload in uploads]) for name in uploads[0]}
