"""FedDAE (Li et al., AAAI 2025, arXiv 2408.08931): a gated pair of variational encoders.

A user keeps an encoder and a gate of his own and receives a shared encoder and the decoder.
He makes a few Adam steps on all of them with his whole row of interactions, keeps the private
part and uploads the shared part's gradients, added over the steps; the server steps Adam
along their mean. ``docs/feddae.md`` lists where the public code differs from the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from models.types import (
    ClientResult,
    CohortResult,
    History,
    IntArray,
    Samples,
    Tensors,
    Update,
    positive_items,
)
from models.vae import DECODER, HISTORY, GatedVAE
from models.vae_block import VAETrained, VAETraining, train_block
from strategies.base import RecStrategy, StrategyConfig, block_metrics


@dataclass(frozen=True)
class FedDAEConfig(StrategyConfig):
    """Settings of FedDAE."""

    local_epochs: int = 5
    """Adam steps a round, each with the user's whole row."""
    num_negatives: int = 1
    """Drawn, but not used: the softmax over the catalogue has no need of them."""
    server_lr: float = 0.03
    private_lr: float = 0.01
    """Learning rate of the user's Adam, whose moments start afresh every round."""
    beta: float = 0.2
    """Weight of the KL divergence."""
    dropout: float = 0.5
    """Probability that an input or a hidden unit of the gate is left out of a step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("private_lr")
        self._not_negative("beta")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")


class FedDAE(RecStrategy):
    """Gradients of shared encoder and decoder up; private encoder and gate stay."""

    Config: ClassVar[type[StrategyConfig]] = FedDAEConfig
    title: ClassVar[str] = "FedDAE (AAAI 2025, arXiv 2408.08931)"
    about: ClassVar[str] = (
        "Autoencoder with a private and a shared encoder, mixed by a private gate"
    )
    dense_updates: ClassVar[bool] = True
    common_start: ClassVar[bool] = True
    config: FedDAEConfig
    model: GatedVAE

    def check(self) -> None:
        """The local steps are those of the gated autoencoder."""
        if not isinstance(self.model, GatedVAE):
            raise ValueError("feddae needs model=vae, whose second encoder and gate are the user's")

    # ---- client half ---------------------------------------------------------------------
    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        """A block of one; ``private`` after the steps, gradients added over them."""
        block = {n: t[None] for n, t in private.items()}
        trained = self._train(shared, block, [epochs], [rng])
        own = {n: t[0] for n, t in trained.private.items()}
        update = Update({n: trained.gradients[n].to_dense() for n in shared}, 1.0)
        return ClientResult(update, own, block_metrics(trained.loss, [epochs]))

    def cohort_update(
        self,
        shared: Tensors,
        private_block: Tensors,
        epochs_U: Sequence[Sequence[Samples]],
        rngs: Sequence[np.random.Generator],
    ) -> CohortResult:
        """The same for a block of users in lock-step."""
        trained = self._train(shared, private_block, epochs_U, rngs)
        update = Update(trained.gradients, float(len(epochs_U)))
        return CohortResult(update, trained.private, block_metrics(trained.loss, epochs_U))

    def adapt(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> Tensors:
        """The steps of a round on the private parameters alone."""
        block = {n: t[None] for n, t in private.items()}
        trained = self._train(shared, block, [epochs], [rng], move_shared=False)
        return {n: t[0] for n, t in trained.private.items()}

    def _train(
        self,
        shared: Tensors,
        private_block: Tensors,
        epochs_U: Sequence[Sequence[Samples]],
        rngs: Sequence[np.random.Generator],
        move_shared: bool = True,
    ) -> VAETrained:
        cfg = self.config
        training = VAETraining(cfg.private_lr, cfg.beta, cfg.dropout, move_shared)
        items_UE = [[positive_items([samples]) for samples in epochs] for epochs in epochs_U]
        return train_block(self.model, shared, private_block, items_UE, rngs, training)

    # ---- scoring -------------------------------------------------------------------------
    def scores_all(self, shared: Tensors, private_block: Tensors, history: History) -> Tensor:
        """Scores (U, I) from the mean code of each user's history."""
        return self.model.scores_all(shared, self._with(history, shared, private_block))

    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray, history: History
    ) -> Tensor:
        """Scores (U, C) of each user's own candidates."""
        with torch.no_grad():
            private = self._with(history, shared, private_block)
            return self.model.score_candidates(shared, private, items_UC)

    def _with(self, history: History, shared: Tensors, private_block: Tensors) -> Tensors:
        items_IH = shared[f"{DECODER}_item"]
        return {**private_block, HISTORY: history.one_hot(len(items_IH)).to(items_IH)}
