"""FedAvg (McMahan et al., arXiv 1602.05629, Algorithm 1) on the shared parameters.

A sampled user copies the shared parameters, runs local epochs of mini-batch SGD on the copy
and on its private parameters, keeps the latter and uploads how far the copy moved. The
server adds the weighted mean movement; seen as a pseudo-gradient it may also go through
Adam (FedOpt, arXiv 2003.00295).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from models import optim
from models.local_sgd import SGDRates, sgd_alone
from models.losses import Loss
from models.mini_batches import mini_batches
from models.reduce_samples import distinct
from models.sam import Radii
from models.types import ClientResult, CohortResult, Samples, Tensors, Update
from strategies.base import RecStrategy, StrategyConfig, block_metrics, training_metrics

Weighting = Literal["samples", "users", "rows"]
PLAIN = Radii()


@dataclass(frozen=True)
class FedAvgConfig(StrategyConfig):
    """Settings of FedAvg."""

    server_optimiser: optim.OptimiserName = "sgd"
    """``sgd`` with ``server_lr`` 1 is plain averaging; others take the movement as a gradient."""
    server_lr: float = 1.0
    batch_size: int = 256
    """Consecutive samples a local SGD step; its loss is their mean."""
    shared_lr: float = 200.0
    """Local learning rate of the shared parameters. A sample moves its row by this over the
    batch size, and the mean over users shrinks that again, hence the size (see ``weighting``)."""
    private_lr: float = 10.0
    """Local learning rate of the private parameters."""
    weighting: Weighting = "samples"
    """Mean over users weighted by their number of ``samples`` (the paper's), over ``users``
    alike, or an item row over the users that have a sample of it (``rows``): most users leave
    most rows as they are, so a mean of whole tables shrinks the movement of rare items.
    Changing this asks for another ``shared_lr``: ``docs/fedavg.md``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least_one("batch_size")
        self._positive("shared_lr", "private_lr")
        self._one_of("weighting", get_args(Weighting))


class FedAvg(RecStrategy):
    """Local mini-batch SGD, weighted mean of the movements."""

    Config: ClassVar[type[StrategyConfig]] = FedAvgConfig
    title: ClassVar[str] = "FedAvg (arXiv 1602.05629)"
    about: ClassVar[str] = "Local SGD on a copy, mean of the movements weighted by samples"
    update_kind: ClassVar[Literal["gradient", "delta"]] = "delta"
    config: FedAvgConfig

    @property
    def rates(self) -> SGDRates:
        """What the local steps are made with."""
        return SGDRates(self.config.shared_lr, self.config.private_lr)

    # ---- client half ---------------------------------------------------------------------
    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        """Local SGD on a copy of all shared parameters: the readable reference."""
        local, private, loss = sgd_alone(
            self.model, shared, private, self._batches(epochs), self.rates
        )
        weight, rows = self._weight(epochs), self._row_weights(shared, [epochs])
        moved = {n: weight * (local[n] - shared[n]) for n in shared}
        return ClientResult(Update(moved, weight, rows), private, training_metrics(loss, epochs))

    def cohort_update(
        self,
        shared: Tensors,
        private_block: Tensors,
        epochs_U: Sequence[Sequence[Samples]],
        rngs: Sequence[np.random.Generator],
    ) -> CohortResult:
        """The same for a block of users, by the model's local SGD."""
        batches_U = [self._batches(epochs) for epochs in epochs_U]
        weights_U = [self._weight(epochs) for epochs in epochs_U]
        trained = self.model.local_sgd(shared, private_block, batches_U, weights_U, self.rates)
        update = Update(trained.moved, sum(weights_U), self._row_weights(shared, epochs_U))
        metrics = block_metrics(trained.loss, epochs_U)
        return CohortResult(update, trained.private, metrics)

    def adapt(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> Tensors:
        """A mini-batch at a time: from the second on, local SGD would rest on moved parameters."""
        return super().adapt(shared, private, self._batches(epochs), rng)

    @property
    def training_loss(self) -> Loss:
        """A mini-batch's loss is the mean of its samples: a user's is their sum."""
        return Loss(self.config.batch_size)

    @property
    def averages_weights(self) -> bool:
        """Not where each row has a weight of its own."""
        return self.config.weighting != "rows"

    @property
    def clip_problem(self) -> str | None:
        """The numbers of users that touched each row are not clipped."""
        if self.config.weighting == "rows":
            return (
                "weighting=rows divides each row by the exact number of users that touched it; "
                "set strategy.weighting=users"
            )
        return super().clip_problem

    def _batches(self, epochs: Sequence[Samples]) -> list[Samples]:
        return mini_batches(epochs, self.config.batch_size)

    def _weight(self, epochs: Sequence[Samples]) -> float:
        """The user's weight in the mean: its samples an epoch, or 1."""
        return float(len(epochs[0])) if self.config.weighting == "samples" else 1.0

    def _row_weights(
        self, shared: Tensors, epochs_U: Sequence[Sequence[Samples]]
    ) -> Tensors | None:
        """How many of the users touched each row, a (I,) tensor a table; None unless ``rows``."""
        if self.config.weighting != "rows":
            return None
        tables = {n: t for n, t in shared.items() if n in self.model.item_tables}
        return {n: _touches(epochs_U, len(t)).to(t) for n, t in tables.items()}

    # ---- server half ---------------------------------------------------------------------
    def server_update(
        self, shared: Tensors, summed: Update, server_state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Add the mean movement: the optimiser descends along its negative.

        Raises:
            ValueError: when ``rows`` weighting is set and an update lacks its row weights.

        """
        if self.config.weighting == "rows" and summed.row_weights is None:
            raise ValueError("weighting=rows needs the row weights of the update")
        if summed.row_weights is not None:  # numbers of users
            counts = {n: c.clamp(min=1) for n, c in summed.row_weights.items()}
            summed = replace(summed, row_weights=counts)
        return super().server_update(shared, summed, server_state)


def _touches(epochs_U: Sequence[Sequence[Samples]], num_items: int) -> Tensor:
    """How many of the users have a sample of each item (I,)."""
    sizes_U = [sum(len(samples) for samples in epochs) for epochs in epochs_U]
    items_S = np.concatenate([samples.items_S for epochs in epochs_U for samples in epochs])
    keys_S = np.repeat(np.arange(len(sizes_U)), sizes_U) * num_items + items_S
    keys_P, _ = distinct(keys_S, len(sizes_U) * num_items)
    return torch.from_numpy(np.bincount(keys_P % num_items, minlength=num_items))
