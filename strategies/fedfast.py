"""FedFast (Muhammad et al., KDD 2020): item rows averaged by how far users moved them.

Of FedFast's two halves this is ActvAGG on what is shared. With Δ_k the movement of user k's
copy from the received parameters, in local training as FedAvg's, the new row i of an item table is

    q_i + Σ_k |Δ_ki| · Δ_ki / Σ_k |Δ_ki|,   |·| the sum of absolute values,

which is the mean of the users' rows weighted by how far each moved it; a row that nobody moved
stays. Other parameters are averaged by samples. Numerator and denominator are sums over users, so
the server sees no single user's. ActvSAMP, and the movement of users that were not sampled, are
not here: they need user vectors on the server (``docs/fedfast.md``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from models import optim
from models.local_sgd import SGDRates, sgd_alone
from models.losses import Loss
from models.mini_batches import mini_batches
from models.sam import Radii
from models.tables import row_lengths, scale_rows
from models.types import ClientResult, CohortResult, Samples, Tensors, Update
from strategies.base import RecStrategy, StrategyConfig, block_metrics, training_metrics

PLAIN = Radii()


@dataclass(frozen=True)
class FedFastConfig(StrategyConfig):
    """Settings of FedFast."""

    server_optimiser: optim.OptimiserName = "sgd"
    """``sgd`` with ``server_lr`` 1 is the paper's average; others take the movement as a
    gradient."""
    server_lr: float = 1.0
    batch_size: int = 256
    """Consecutive samples a local SGD step; its loss is their mean."""
    shared_lr: float = 20.0
    """Local learning rate of the shared parameters. Users who left a row alone do not shrink its
    movement, so this is an ordinary rate: a sample moves its row by it over the batch size."""
    private_lr: float = 5.0
    """Local learning rate of the private parameters."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least_one("batch_size")
        self._positive("shared_lr", "private_lr")


class FedFast(RecStrategy):
    """Local mini-batch SGD; item rows averaged by their movement (ActvAGG)."""

    Config: ClassVar[type[StrategyConfig]] = FedFastConfig
    title: ClassVar[str] = "FedFast, ActvAGG (KDD 2020)"
    about: ClassVar[str] = "Item rows averaged with weights by how far each user moved them"
    update_kind: ClassVar[Literal["gradient", "delta"]] = "delta"
    config: FedFastConfig

    @property
    def rates(self) -> SGDRates:
        """Local learning rates."""
        return SGDRates(self.config.shared_lr, self.config.private_lr)

    @property
    def training_loss(self) -> Loss:
        """A mini-batch's loss is the mean of its samples: a user's is their sum."""
        return Loss(self.config.batch_size)

    @property
    def averages_weights(self) -> bool:
        """Each row has weights of its own, which a stock strategy would not know."""
        return False

    @property
    def clip_problem(self) -> str | None:
        """The lengths of rows are not clipped."""
        return "it divides each row by the exact sum of how far users moved it"

    # ---- client half ---------------------------------------------------------------------
    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        """Local SGD on a copy of all shared parameters: the readable reference."""
        batches = mini_batches(epochs, self.config.batch_size)
        local, private, loss = sgd_alone(self.model, shared, private, batches, self.rates)
        moved, weight = {n: local[n] - shared[n] for n in shared}, float(len(epochs[0]))
        lengths = {n: row_lengths(moved[n]) for n in shared if n in self.model.item_tables}
        weighed = {
            n: scale_rows(t, lengths[n]) if n in lengths else weight * t for n, t in moved.items()
        }
        return ClientResult(
            Update(weighed, weight, lengths), private, training_metrics(loss, epochs)
        )

    def cohort_update(
        self,
        shared: Tensors,
        private_block: Tensors,
        epochs_U: Sequence[Sequence[Samples]],
        rngs: Sequence[np.random.Generator],
    ) -> CohortResult:
        """The same for a block of users, by the model's local SGD."""
        batches_U = [mini_batches(epochs, self.config.batch_size) for epochs in epochs_U]
        weights_U = [float(len(epochs[0])) for epochs in epochs_U]
        trained = self.model.local_sgd(
            shared, private_block, batches_U, weights_U, self.rates, by_length=True
        )
        metrics = block_metrics(trained.loss, epochs_U)
        update = Update(trained.moved, sum(weights_U), trained.lengths)
        return CohortResult(update, trained.private, metrics)

    def adapt(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> Tensors:
        """A mini-batch at a time: from the second on, local SGD would rest on moved parameters."""
        batches = mini_batches(epochs, self.config.batch_size)
        return super().adapt(shared, private, batches, rng)

    # ---- server half ---------------------------------------------------------------------
    def server_update(
        self, shared: Tensors, summed: Update, server_state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Add the weighted mean movement: the optimiser descends along its negative.

        Raises:
            ValueError: for an update without the norms of its rows' movements.

        """
        if summed.row_weights is None:
            raise ValueError("the update needs its row weights, the norms of the movements")
        return super().server_update(shared, summed, server_state)
