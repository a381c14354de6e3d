"""The contract of a federated recommendation algorithm: one object, both halves.

A strategy is pure over tensors: what a user does with the shared parameters, what the
server does with the sum of the users' updates. Flower's hooks are in
``strategies.hooks``, records in ``strategies.wire``; a new algorithm touches neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from models import optim
from models.base import ScoringModel
from models.types import ClientResult, CohortResult, Samples, SumOfUpdates, Tensors, Update
from strategies.hooks import FlowerHooks


@dataclass(frozen=True)
class StrategyConfig:
    """Settings every strategy has; a strategy's file extends it with its own."""

    local_epochs: int = 1
    """Passes over freshly drawn samples a round, at least 1."""
    num_negatives: int = 4
    """Training negatives a positive, drawn without replacement for that positive."""
    server_optimiser: optim.OptimiserName = "adam"
    """Optimiser the server keeps over the shared parameters."""
    server_lr: float = 0.001
    """Learning rate of the server's optimiser."""

    def __post_init__(self) -> None:
        for name in ("local_epochs", "num_negatives"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.server_lr <= 0:
            raise ValueError(f"server_lr must be positive, got {self.server_lr}")


class RecStrategy(FlowerHooks):
    """Base of all strategies. A subclass gives ``Config``, metadata and the client's update."""

    Config: ClassVar[type[StrategyConfig]] = StrategyConfig
    title: ClassVar[str]
    """Name as in its paper, with the reference (for example an arXiv number)."""
    update_kind: ClassVar[Literal["gradient", "delta"]] = "gradient"
    """What the shared part of an update is: a gradient, or the weighted movement of weights
    (then a stock Flower strategy, which averages weights, can drive the nodes too)."""
    needs_individual_updates: ClassVar[bool] = False
    """The server must see each user's update, not only their sum."""
    supports_partial_participation: ClassVar[bool] = True
    folds_evaluation: ClassVar[bool] = True
    """A round's model can be ranked by what the next training request carries: the shared
    parameters, and nothing of a user's own."""
    extra_exchanges: ClassVar[tuple[str, ...]] = ()
    """Messages beyond one train and one evaluate exchange a round, by name."""
    model: ScoringModel
    config: Any

    def __init__(self, config: Any, model: ScoringModel) -> None:
        if not isinstance(config, self.Config):
            raise TypeError(f"{type(self).__name__} needs a {self.Config.__name__}")
        super().__init__()
        self.config = config
        self.model = model
        self.check()

    def check(self) -> None:
        """Raise ValueError when the model does not suit the strategy; the default accepts all."""

    # ---- initial state -------------------------------------------------------------------
    def init_shared(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Initial shared parameters; drawn once by the server."""
        return self.model.init_shared(num_items, rng)

    def init_private(self, rng: np.random.Generator) -> Tensors:
        """One user's initial private state: model parameters and optimiser moments."""
        return self.model.init_private(rng)

    def private_parameters(self, private: Tensors) -> Tensors:
        """The part of the private state (or block) that the model scores with."""
        return {n: private[n] for n in self.private_names}

    @cached_property
    def private_names(self) -> tuple[str, ...]:
        """Names of the model's private parameters; found once, as every user's step asks."""
        return tuple(self.model.init_private(np.random.default_rng(0)))

    # ---- client half ---------------------------------------------------------------------
    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        """Train one user. ``epochs`` holds the samples of each local epoch.

        Pure: inputs are not modified. ``rng`` is the strategy's own stream for this user
        and round (role STRATEGY).
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
        total = SumOfUpdates(shared)
        private_rows, metrics = [], dict[str, float]()
        for row, epochs in enumerate(epochs_U):
            private = {name: tensor[row] for name, tensor in private_block.items()}
            result = self.client_update(shared, private, epochs, rngs[row])
            total.add(result.update)
            private_rows.append(result.private)
            for name, value in result.metrics.items():
                metrics[name] = metrics.get(name, 0.0) + value
        stacked = {n: torch.stack([row[n] for row in private_rows]) for n in private_block}
        return CohortResult(total.result(), stacked, metrics)

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

    def downlink(self, user: int) -> Tensors:
        """Tensors for this user beside the shared ones (methods with personal tables)."""
        return {}

    def evaluation_parameters(self, user: int) -> Tensors | None:
        """A personal replacement of shared parameters for scoring; None means the shared ones."""
        return None

    # ---- server half ---------------------------------------------------------------------
    def init_server_state(self, shared: Tensors) -> Tensors:
        """State that the server keeps between rounds, as named tensors (checkpointed)."""
        return optim.init_state(self.config.server_optimiser, shared)

    def server_update(
        self, shared: Tensors, summed: Update, server_state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Step the server's optimiser along the mean update, read as a gradient."""
        mean = {n: t / summed.weight for n, t in summed.tensors.items()}
        cfg = self.config
        return optim.step(cfg.server_optimiser, shared, mean, server_state, cfg.server_lr)
