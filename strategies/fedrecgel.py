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
import torch
from torch import Tensor

from models import optim
from models.dropout import dropped
from models.hard_negatives import hardest
from models.losses import Loss, LossName
from models.sam import Radii, Scores, sam_gradients
from models.types import ClientResult, CohortResult, Samples, SumOfUpdates, Tensors, Update
from strategies.base import RecStrategy, StrategyConfig
from strategies.sam_config import SAMConfig

STEPS = "steps_of_falling_rate"
"""In the server's state: steps made, where ``server_half_life`` is set."""


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
    hard_negatives: int | None = None
    """Negatives a positive that are trained on, the highest scored of the ``num_negatives`` drawn
    (``models.hard_negatives``); None: all."""
    user_dropout: float = 0.0
    """Probability that an entry of the user's vectors is off for a local epoch
    (``models.dropout``). Above zero users are trained one by one."""
    server_half_life: float | None = None
    """Rounds in which the server's learning rate falls to a half; None: it stays."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("private_lr", "local_lr")
        self._at_least_one("loss_slice")
        if not 0 <= self.user_dropout < 1:
            raise ValueError(f"user_dropout must lie in [0, 1), got {self.user_dropout}")
        if self.hard_negatives is not None and not 1 <= self.hard_negatives <= self.num_negatives:
            said = f"within 1 and num_negatives={self.num_negatives}, got {self.hard_negatives}"
            raise ValueError(f"hard_negatives must be {said}")
        if self.server_half_life is not None:
            self._positive("server_half_life")
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
        epochs = list(epochs)
        for done, drawn in enumerate(epochs, start=1):
            user = self.private_parameters(private)
            epochs[done - 1] = samples = self._trained_on(theta, user, drawn)
            h = sam_gradients(self._left(user, rng), theta, user, samples, self.loss, self.radii)
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
        """Train a block at once; user by user with more than one local epoch, or dropout."""
        if self.config.user_dropout > 0 or any(len(epochs) != 1 for epochs in epochs_U):
            return super().cohort_update(shared, private_block, epochs_U, rngs)
        users, samples_U = self.private_parameters(private_block), [one for (one,) in epochs_U]
        if self._keeps_hardest:
            samples_U = [
                self._trained_on(shared, {n: t[row] for n, t in users.items()}, drawn)
                for row, drawn in enumerate(samples_U)
            ]
        h = self.model.block_gradients(shared, users, samples_U, self.loss, self.radii)
        private = self._private_step(private_block, h.private)
        metrics = self._metrics(h.losses.sum(0), samples_U)
        return CohortResult(Update(h.shared, float(len(samples_U))), private, metrics)

    def _trained_on(self, shared: Tensors, user: Tensors, drawn: Samples) -> Samples:
        """The samples of an epoch, without the negatives that are too easy."""
        if not self._keeps_hardest:
            return drawn
        return hardest(self.model, shared, user, drawn, self.config.hard_negatives)

    @property
    def _keeps_hardest(self) -> bool:
        return self.config.hard_negatives not in (None, self.config.num_negatives)

    def _left(self, user: Tensors, rng: np.random.Generator) -> Scores:
        """The model, for an epoch without the entries of the user that are off."""
        rate = self.config.user_dropout
        return self.model if rate == 0 else dropped(self.model, user, rate, rng)

    def init_server_state(self, shared: Tensors) -> Tensors:
        """The optimiser's state and, for a rate that falls, the number of steps made."""
        state = super().init_server_state(shared)
        falls = self.config.server_half_life is not None
        return {**state, STEPS: torch.zeros((), dtype=torch.int64)} if falls else state

    def server_update(
        self, shared: Tensors, summed: Update, server_state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """A step of ``server_optimiser`` against the mean gradient.

        After n steps the rate is ``server_lr`` · 2^(−n / ``server_half_life``).
        """
        cfg, half_life = self.config, self.config.server_half_life
        if half_life is None:
            return super().server_update(shared, summed, server_state)
        state = dict(server_state)
        made = state.pop(STEPS)
        rate = cfg.server_lr * 2.0 ** (-int(made) / half_life)
        stepped, state = optim.step(cfg.server_optimiser, shared, summed.mean(), state, rate)
        return stepped, {**state, STEPS: made + 1}

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
