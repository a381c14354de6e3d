"""FedMF (Chai et al., arXiv 1906.05108): users upload gradients of the item embeddings.

A sampled user computes the gradient of its own loss by the shared parameters and by its
private vector at the same point, steps the vector itself and uploads the shared gradient;
the server steps its optimiser along the mean gradient. The paper fits explicit ratings by
squared error, with every user in every round, and encrypts the upload; here the loss is the
binary cross-entropy of implicit feedback with sampled negatives. With ``encryption=paillier``
the server holds and adds ciphertexts only (``strategies.paillier``), with nodes that share a key
pair in the place of the paper's users. ``docs/fedmf.md`` lists the differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch

from models import optim
from models.losses import Loss
from models.sam import Radii, sam_gradients
from models.tables import mean_tables
from models.types import ClientResult, CohortResult, Samples, Tensors, Update
from strategies.base import RecStrategy, StrategyConfig, block_metrics, training_metrics
from strategies.paillier import MULTIPLIER, VALUE_BITS, Paillier
from strategies.paillier_keys import require_phe

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
    encryption: Literal["none", "paillier"] = "none"
    """What the server sees: sums over a node's users, or ciphertexts of them alone."""
    key_folder: str = ""
    """Folder with the key pair (``fedrecgel keys``), at the same place on every machine: the server
    reads ``public.json``, nodes ``private.json`` as well."""
    fraction_bits: int = 24
    """Encrypted numbers are multiples of 2 to the minus this."""
    allow_weak_key: bool = False
    """Accept keys of less than 2048 bits, for trying."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.fraction_bits <= 40:
            raise ValueError(f"fraction_bits must be in 1..40, got {self.fraction_bits}")
        if self.encryption == "paillier" and self.server_optimiser != "sgd":
            raise ValueError(
                "server_optimiser must be sgd with encryption=paillier: ciphertexts can be added, "
                f"not squared or divided; got {self.server_optimiser}"
            )
        if self.encryption == "paillier" and not self.key_folder:
            raise ValueError("key_folder is needed with encryption=paillier: fedrecgel keys DIR")
        self._positive("private_lr")
        self._at_least_one("loss_slice")


class FedMF(RecStrategy):
    """Gradient of the shared parameters up, private parameters stepped by the user."""

    Config: ClassVar[type[StrategyConfig]] = FedMFConfig
    title: ClassVar[str] = "FedMF (arXiv 1906.05108)"
    about: ClassVar[str] = "Plain gradients of the item embeddings up, a private step on the node"
    config: FedMFConfig

    @property
    def plain_updates(self) -> bool:
        """Not under encryption."""
        return self.config.encryption == "none"

    # ---- encryption ------------------------------------------------------------------------
    def check(self) -> None:
        """Encryption needs its package and a readable public key."""
        super().check()
        if self.config.encryption == "paillier":
            require_phe()
            assert self.paillier is not None

    @property
    def clip_problem(self) -> str | None:
        """Noise cannot be added by a server that holds ciphertexts."""
        if self.config.encryption == "paillier":
            return "its server holds ciphertexts; set strategy.encryption=none"
        return super().clip_problem

    @cached_property
    def paillier(self) -> Paillier | None:
        """Ciphertexts under the key pair, or None without encryption."""
        cfg = self.config
        if cfg.encryption == "none":
            return None
        return Paillier(Path(cfg.key_folder), cfg.fraction_bits, cfg.allow_weak_key)

    def init_shared(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """The model's; encrypted, although whoever knows the seed can draw the same."""
        drawn = super().init_shared(num_items, rng)
        return drawn if self.paillier is None else self.paillier.seal(drawn)

    def opened(self, shared: Tensors) -> Tensors:
        """Decrypted on a node."""
        return shared if self.paillier is None else self.paillier.open(shared)

    def sealed(self, update: Update) -> Update:
        """The node's sum times the server's learning rate, encrypted."""
        if self.paillier is None:
            return update
        bound, steps = 2.0**VALUE_BITS * update.weight, dict[str, torch.Tensor]()
        for name, tensor in update.tensors.items():
            step = self.config.server_lr * tensor.to_dense().double()
            steps[name] = self.paillier.encrypt(step, bound, f"the step of {name}")
        return Update(steps, update.weight)

    def summed_template(self, shared: Tensors) -> Tensors:
        """As the server receives it: ciphertexts, without what says how to read them."""
        if MULTIPLIER not in shared:
            return super().summed_template(shared)
        return {n: t for n, t in shared.items() if t.dtype == torch.uint8}

    def combined(self, updates: Sequence[Update], shared: Tensors) -> Update:
        """The sum of the nodes' updates, under encryption where there is one."""
        if self.paillier is None:
            return super().combined(updates, shared)
        return self.paillier.add(updates)

    def init_server_state(self, shared: Tensors) -> Tensors:
        """Nothing under encryption: its step is plain SGD."""
        return {} if self.paillier is not None else super().init_server_state(shared)

    def server_update(
        self, shared: Tensors, summed: Update, server_state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """An optimiser's step along the mean; on ciphertexts that of SGD."""
        if self.paillier is None:
            return super().server_update(shared, summed, server_state)
        return self.paillier.step(shared, summed), server_state

    # ---- training --------------------------------------------------------------------------
    @property
    def training_loss(self) -> Loss:
        """Sliced binary cross-entropy."""
        return Loss(self.config.loss_slice)

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """One user's vector and the zero moments of its optimiser."""
        parameters = self.model.init_private(num_items, rng)
        return {**parameters, **optim.init_state(self.config.private_optimiser, parameters)}

    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        """An epoch a private step; the upload is the mean of the epochs' shared gradients."""
        total, loss = {n: torch.zeros_like(t) for n, t in shared.items()}, 0.0
        bce = self.training_loss
        for samples in epochs:
            at = self.private_parameters(private)
            user = sam_gradients(self.model, shared, at, samples, bce, PLAIN)
            total = {n: total[n] + user.shared[n] / len(epochs) for n in total}
            loss += float(user.losses[0]) / len(epochs)
            private = self._private_step(private, user.private)
        return ClientResult(Update(total, weight=1.0), private, training_metrics(loss, epochs))

    def cohort_update(
        self,
        shared: Tensors,
        private_block: Tensors,
        epochs_U: Sequence[Sequence[Samples]],
        rngs: Sequence[np.random.Generator],
    ) -> CohortResult:
        """The same for a block of users at once, by the model's block gradients."""
        by_epoch, gradients, loss = list(zip(*epochs_U, strict=True)), [], 0.0
        bce = self.training_loss
        for samples_U in by_epoch:
            at = self.private_parameters(private_block)
            block = self.model.block_gradients(shared, at, samples_U, bce, PLAIN)
            gradients.append(block.shared)
            loss += float(block.losses[:, 0].sum()) / len(by_epoch)
            private_block = self._private_step(private_block, block.private)
        mean = {n: mean_tables([g[n] for g in gradients]) for n in shared}
        metrics = block_metrics(loss, epochs_U)
        return CohortResult(Update(mean, float(len(epochs_U))), private_block, metrics)

    def _private_step(self, private: Tensors, gradients: Tensors) -> Tensors:
        """One optimiser step of a user, or of each user of a block."""
        cfg, at = self.config, self.private_parameters(private)
        stepped, moments = optim.step(cfg.private_optimiser, at, gradients, private, cfg.private_lr)
        return {**stepped, **moments}
