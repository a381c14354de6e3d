"""FedRecGEL: local training that looks for flat minima of the shared and the private block.

Source: arXiv 2603.11503 and its public training code. A user's round, on samples drawn
afresh and the loss of ``models.losses``, with shared block θ and private block u:

1. g_θ, g_u = gradients at (θ, u)
2. h_θ = gradient by θ at (θ + ρ_shared · g_θ/‖g_θ‖, u)
3. h_u = gradient by u at (θ, u + ρ_private · g_u/‖g_u‖)
4. u ← Adam(u, h_u), its moments kept by the user
5. upload h_θ; the server makes an Adam step along the mean over the cohort

With both radii zero this is FedNCF, by the same code. Adaptive radii (``sam.adaptive``) weigh
steps 2 and 3 by the size of each parameter (``models.sam``). Blocks of users are computed by the
model's own exact kernel where it has one (``mf``, ``neumf``; ``neumf`` without adaptive radii),
else user by user by automatic differentiation: the same numbers, slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, get_args

import numpy as np
from torch import Tensor

from models import optim
from models.losses import Loss, LossName
from models.sam import Radii, sam_gradients
from models.types import ClientResult, CohortResult, Samples, SumOfUpdates, Tensors, Update
from strategies.base import RecStrategy, StrategyConfig
from strategies.sam_config import SAMConfig


@dataclass(frozen=True)
class PrivateAdamConfig(StrategyConfig):
    """Settings of a user's local training."""

    private_lr: float = 0.1
    """Learning rate of the user's own Adam, whose moments stay with the user."""
    loss: LossName = "bce"
    """Binary cross-entropy of single samples, or each positive against its own negatives by
    ``bpr`` or sampled ``softmax`` (``models.losses``)."""
    loss_slice: int = 128
    """A sample weighs one over the length of its slice of so many samples: the cross-entropy is
    the sum over slices of a slice's mean."""
    local_lr: float = 0.001
    """Learning rate of the local Adam over the shared block; for local_epochs > 1 only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("private_lr", "local_lr")
        self._at_least_one("loss_slice")
        self._one_of("loss", get_args(LossName))


@dataclass(frozen=True)
class FedRecGELConfig(PrivateAdamConfig):
    """Settings of FedRecGEL; the defaults are the paper's for FilmTrust."""

    sam: SAMConfig = field(default_factory=SAMConfig)
    """Perturbations: ``rho_shared``, ``rho_private`` and whether they are ``adaptive``."""


class FedRecGEL(RecStrategy):
    """Sharpness-aware gradients of the shared block, and of each user's private block."""

    Config: ClassVar[type[StrategyConfig]] = FedRecGELConfig
    title: ClassVar[str] = "FedRecGEL (arXiv 2603.11503)"
    about: ClassVar[str] = "Sharpness-aware gradients up, a sharpness-aware private Adam step"

    @property
    def radii(self) -> Radii:
        """Perturbation radii of both blocks."""
        sam: SAMConfig = self.config.sam
        return sam.radii

    @property
    def loss(self) -> Loss:
        """What a user's samples cost."""
        return Loss(self.config.loss_slice, self.config.loss)

    @property
    def training_loss(self) -> Loss:
        """The same, without perturbation."""
        return self.loss

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """The model's private parameters and their Adam moments."""
        parameters = self.model.init_private(num_items, rng)
        return {**parameters, **optim.init_state("adam", parameters)}

    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        """Train one user: steps 1 to 4 for each epoch's samples.

        From the second epoch on θ is a local copy, moved after each epoch by an Adam step
        along h_θ (fresh moments every round, ``local_lr``). The upload is the mean of h_θ
        over the epochs, so that its scale does not depend on their number; likewise the
        losses. ``num_samples`` counts the samples of all epochs.
        """
        theta, moments = shared, optim.init_state("adam", shared)
        total, losses = SumOfUpdates(shared), []
        for done, samples in enumerate(epochs, start=1):
            user = self.private_parameters(private)
            h = sam_gradients(self.model, theta, user, samples, self.loss, self.radii)
            private = self._private_step(private, h.private)
            total.add(Update(h.shared, 1.0))
            losses.append(h.losses)
            if done < len(epochs):
                theta, moments = optim.step("adam", theta, h.shared, moments, self.config.local_lr)
        mean = {n: t / len(epochs) for n, t in total.result().tensors.items()}
        metrics = self._metrics(sum(losses[1:], losses[0]) / len(epochs), epochs)
        return ClientResult(Update(mean, 1.0), private, metrics)

    def cohort_update(
        self,
        shared: Tensors,
        private_block: Tensors,
        epochs_U: Sequence[Sequence[Samples]],
        rngs: Sequence[np.random.Generator],
    ) -> CohortResult:
        """Train a block at once; user by user when there is more than one local epoch."""
        if any(len(epochs) != 1 for epochs in epochs_U):
            return super().cohort_update(shared, private_block, epochs_U, rngs)
        samples_U, users = (
            [epochs[0] for epochs in epochs_U],
            self.private_parameters(private_block),
        )
        h = self.model.block_gradients(shared, users, samples_U, self.loss, self.radii)
        private = self._private_step(private_block, h.private)
        metrics = self._metrics(h.losses.sum(0), samples_U)
        return CohortResult(Update(h.shared, float(len(samples_U))), private, metrics)

    def _private_step(self, private: Tensors, gradients: Tensors) -> Tensors:
        """Step 4, for one user or for each user of a block."""
        user = self.private_parameters(private)
        user, moments = optim.step("adam", user, gradients, private, self.config.private_lr)
        return {**user, **moments}

    def _metrics(self, losses: Tensor, samples: Iterable[Samples]) -> dict[str, float]:
        """Losses (3,) of the passes that were made, and the number of samples."""
        made = (True, self.radii.shared > 0, self.radii.private > 0)
        names = ("loss", "loss_shared", "loss_private")
        values = {n: float(v) for n, v, on in zip(names, losses, made, strict=True) if on}
        return {**values, "num_samples": float(sum(len(part) for part in samples))}
