"""FedMF (Chai et al., arXiv 1906.05108): users upload gradients of the item embeddings.

A sampled user computes the gradient of its own loss by the shared parameters and by its
private vector at the same point, steps the vector itself and uploads the shared gradient;
the server steps its optimiser along the mean gradient. The paper fits explicit ratings by
squared error, with every user in every round, and encrypts the upload; here the loss is the
binary cross-entropy of implicit feedback with sampled negatives, and encryption is none of
the strategy's business. ``docs/fedmf.md`` lists the differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from models import optim
from models.sam import Radii, sam_gradients
from models.tables import mean_tables
from models.types import ClientResult, CohortResult, Samples, Tensors, Update
from strategies.base import RecStrategy, StrategyConfig

PLAIN = Radii()


@dataclass(frozen=True)
class FedMFConfig(StrategyConfig):
    """Settings of FedMF."""

    server_lr: float = 0.05
    private_optimiser: optim.OptimiserName = "adam"
    """Optimiser of a user's private parameters; its moments stay with the user."""
    private_lr: float = 0.1
    """Learning rate of the private optimiser."""
    loss_slice: int = 128
    """Samples a slice: the loss is the sum over slices of a slice's mean (``models.losses``)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.private_lr <= 0:
            raise ValueError(f"private_lr must be positive, got {self.private_lr}")
        if self.loss_slice < 1:
            raise ValueError(f"loss_slice must be at least 1, got {self.loss_slice}")


class FedMF(RecStrategy):
    """Gradient of the shared parameters up, private parameters stepped by the user."""

    Config: ClassVar[type[StrategyConfig]] = FedMFConfig
    title: ClassVar[str] = "FedMF (arXiv 1906.05108)"
    config: FedMFConfig

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """One user's vector and the zero moments of its optimiser."""
        parameters = self.model.init_private(num_items, rng)
        return {**parameters, **optim.init_state(self.config.private_optimiser, parameters)}

    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        """An epoch a private step; the upload is the mean of the epochs' shared gradients."""
        total, loss = {n: torch.zeros_like(t) for n, t in shared.items()}, 0.0
        for samples in epochs:
            at = self.private_parameters(private)
            user = sam_gradients(self.model, shared, at, samples, self.config.loss_slice, PLAIN)
            total = {n: total[n] + user.shared[n] / len(epochs) for n in total}
            loss += float(user.losses[0]) / len(epochs)
            private = self._private_step(private, user.private)
        return ClientResult(Update(total, weight=1.0), private, _metrics(loss, epochs))

    def cohort_update(
        self,
        shared: Tensors,
        private_block: Tensors,
        epochs_U: Sequence[Sequence[Samples]],
        rngs: Sequence[np.random.Generator],
    ) -> CohortResult:
        """The same for a block of users at once, by the model's block gradients."""
        by_epoch, gradients, loss = list(zip(*epochs_U, strict=True)), [], 0.0
        for samples_U in by_epoch:
            at = self.private_parameters(private_block)
            block = self.model.block_gradients(shared, at, samples_U, self.config.loss_slice, PLAIN)
            gradients.append(block.shared)
            loss += float(block.losses[:, 0].sum()) / len(by_epoch)
            private_block = self._private_step(private_block, block.private)
        mean = {n: mean_tables([g[n] for g in gradients]) for n in shared}
        metrics = _metrics(loss, [samples for epochs in epochs_U for samples in epochs])
        return CohortResult(Update(mean, float(len(epochs_U))), private_block, metrics)

    def _private_step(self, private: Tensors, gradients: Tensors) -> Tensors:
        """One optimiser step of a user, or of each user of a block."""
        cfg, at = self.config, self.private_parameters(private)
        stepped, moments = optim.step(cfg.private_optimiser, at, gradients, private, cfg.private_lr)
        return {**stepped, **moments}


def _metrics(loss: float, samples: Sequence[Samples]) -> dict[str, float]:
    return {"loss": loss, "num_samples": float(sum(len(part) for part in samples))}
