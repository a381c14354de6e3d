"""FedRAP (Li et al., ICLR 2024, arXiv 2301.09109): a shared and a personal item table, added.

A user scores item i by w · (D_i + C_i) + b. The table D and the scorer (w, b) stay with the
user; C is shared. Local SGD trains all three on cross-entropy, with a term that drives D and C
apart and one that makes C sparse, both phased in over the rounds; the server takes the mean of
the users' copies of C. ``models.additive_sgd`` has the loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models import optim
from models.additive_sgd import AdditiveRates, additive_sgd
from models.linear import BIAS, ITEM, WEIGHT, LinearScoring, own_rows, score_rows
from models.mini_batches import mini_batches
from models.types import ClientResult, CohortResult, History, IntArray, Samples, Tensors, Update
from strategies.base import RecStrategy, StrategyConfig, block_metrics, training_metrics

OWN, ROUNDS = "own_item_emb", "rounds"
"""The user's table D, private; and the number of finished rounds, shared."""
Curriculum = Literal["tanh", "constant"]
CURRICULUM_ROUNDS = 10


@dataclass(frozen=True)
class FedRAPConfig(StrategyConfig):
    """Settings of FedRAP; ``docs/fedrap.md`` has the public code's."""

    server_optimiser: optim.OptimiserName = "sgd"
    """``sgd`` with ``server_lr`` 1 is the mean of the users' tables C, which is the paper's."""
    server_lr: float = 1.0
    batch_size: int = 256
    """Consecutive samples a local SGD step; its loss is their mean."""
    score_lr: float = 0.1
    """Local learning rate of the scorer in the first mini-batch of the first round."""
    own_lr: float = 20.0
    """The same of the user's table D."""
    item_lr_factor: float = 8.0
    """The same of C, over the number of items: a mean over users, of whom few have a given item,
    shrinks its movement. The paper has one rate for both tables."""
    weight_decay: float = 0.0
    """L2 penalty, times ½, of the scorer and of a mini-batch's rows of both tables."""
    round_decay: float = 1.0
    """All learning rates are multiplied by this after each round (public code: 0.97)."""
    batch_decay: float = 1.0
    """And by this after each mini-batch, anew in each round (public code: 0.95)."""
    difference: float = 0.001
    """λ, of minus the mean squared difference of D and C over a mini-batch's rows."""
    sparsity: float = 0.001
    """μ, of the mean absolute value of C over a mini-batch's rows."""
    curriculum: Curriculum = "tanh"
    """In round t from 0 both are multiplied by ``tanh`` (t/10), or are ``constant``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least_one("batch_size")
        self._positive("score_lr", "own_lr", "item_lr_factor")
        self._not_negative("weight_decay", "difference", "sparsity")
        for name in ("round_decay", "batch_decay"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in 0..1, above 0, got {getattr(self, name)}")
        self._one_of("curriculum", get_args(Curriculum))

    def rates(self, finished_rounds: int, num_items: int) -> AdditiveRates:
        """What the round after so many is trained with."""
        phased = self.curriculum == "tanh"
        phase = math.tanh(finished_rounds / CURRICULUM_ROUNDS) if phased else 1.0
        decay = self.round_decay**finished_rounds
        return AdditiveRates(
            self.score_lr * decay,
            self.own_lr * decay,
            self.item_lr_factor * num_items * decay,
            self.batch_decay,
            self.weight_decay,
            self.difference * phase,
            self.sparsity * phase,
        )


class FedRAP(RecStrategy):
    """Private table and scorer, shared table; local SGD, mean of the shared tables."""

    Config: ClassVar[type[StrategyConfig]] = FedRAPConfig
    title: ClassVar[str] = "FedRAP (ICLR 2024, arXiv 2301.09109)"
    about: ClassVar[str] = "A user's own item table added to a sparse shared one"
    update_kind: ClassVar[Literal["gradient", "delta"]] = "delta"
    common_start: ClassVar[bool] = True
    idle_tensors: ClassVar[frozenset[str]] = frozenset({ROUNDS})
    config: FedRAPConfig
    model: LinearScoring

    def check(self) -> None:
        """The local steps are written for a linear score function."""
        if not isinstance(self.model, LinearScoring):
            raise ValueError("fedrap needs model=linear, whose score function is the user's")

    def init_shared(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """The shared table C, and how many rounds are finished: rates depend on it."""
        return {**super().init_shared(num_items, rng), ROUNDS: torch.zeros(())}

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """A scorer and a table D."""
        parameters = self.model.init_private(num_items, rng)
        return {**parameters, OWN: self.model.draw_items(num_items, rng)}

    # ---- client half ---------------------------------------------------------------------
    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        """Mini-batch SGD on D, C and the scorer: the readable reference."""
        local = {**private, ITEM: shared[ITEM]}
        local, loss = self._descend(local, epochs, self._rates(shared), tuple(local))
        moved = {ITEM: local[ITEM] - shared[ITEM], ROUNDS: torch.ones_like(shared[ROUNDS])}
        private = {name: local[name] for name in private}
        return ClientResult(Update(moved, 1.0), private, training_metrics(loss, epochs))

    def cohort_update(
        self,
        shared: Tensors,
        private_block: Tensors,
        epochs_U: Sequence[Sequence[Samples]],
        rngs: Sequence[np.random.Generator],
    ) -> CohortResult:
        """The same for a block of users in lock-step; exact, see ``models.additive_sgd``."""
        batches_U = [mini_batches(epochs, self.config.batch_size) for epochs in epochs_U]
        own = (private_block[OWN], private_block[WEIGHT], private_block[BIAS])
        trained = additive_sgd(shared[ITEM], *own, batches_U, self._rates(shared))
        pairs, users = trained.pairs, len(epochs_U)
        private = {
            WEIGHT: trained.weights_UD,
            BIAS: trained.biases_U,
            OWN: pairs.put(trained.own_PD, private_block[OWN]),
        }
        moved = {
            ITEM: pairs.moved(trained.copy_PD, shared[ITEM]),
            ROUNDS: torch.full_like(shared[ROUNDS], users),
        }
        metrics = block_metrics(trained.loss, epochs_U)
        return CohortResult(Update(moved, float(users)), private, metrics)

    def adapt(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> Tensors:
        """The same steps of the user's table and scorer; C stays as it is."""
        local = {**private, ITEM: shared[ITEM]}
        local, _ = self._descend(local, epochs, self._rates(shared), tuple(private))
        return {name: local[name] for name in private}

    def _descend(
        self,
        local: Tensors,
        epochs: Sequence[Samples],
        rates: AdditiveRates,
        trained: tuple[str, ...],
    ) -> tuple[Tensors, float]:
        """SGD on the tensors named in ``trained``; returns all, and the mean BCE of the batches."""
        batches, loss = mini_batches(epochs, self.config.batch_size), 0.0
        for step, batch in enumerate(batches):
            gradients, batch_loss = _gradients(local, batch, rates, trained)
            scorer_lr, own_lr, items_lr = rates.at(step)
            lrs = {WEIGHT: scorer_lr, BIAS: scorer_lr, OWN: own_lr, ITEM: items_lr}
            local = local | {n: local[n] - lrs[n] * gradients[n] for n in trained}
            loss += batch_loss / len(batches)
        return local, loss

    def _rates(self, shared: Tensors) -> AdditiveRates:
        return self.config.rates(int(shared[ROUNDS]), len(shared[ITEM]))

    # ---- scoring -------------------------------------------------------------------------
    def scores_all(self, shared: Tensors, private_block: Tensors, history: History) -> Tensor:
        """With the sum of the user's table and the shared one (U, I)."""
        return score_rows(private_block[OWN] + shared[ITEM], private_block)

    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray, history: History
    ) -> Tensor:
        """The same for each user's own candidates (U, C)."""
        index_UC = torch.from_numpy(items_UC).to(shared[ITEM].device)
        rows_UCD = own_rows(private_block[OWN], items_UC) + shared[ITEM][index_UC]
        return score_rows(rows_UCD, private_block)

    # ---- server half ---------------------------------------------------------------------
    def init_server_state(self, shared: Tensors) -> Tensors:
        """The optimiser's state for C."""
        return optim.init_state(self.config.server_optimiser, {ITEM: shared[ITEM]})

    def server_update(
        self, shared: Tensors, summed: Update, server_state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Add the mean movement of C, and count the round."""
        cfg, gradient = self.config, {ITEM: -summed.tensors[ITEM] / summed.weight}
        items = {ITEM: shared[ITEM]}
        moved, state = optim.step(
            cfg.server_optimiser, items, gradient, server_state, cfg.server_lr
        )
        return {**moved, ROUNDS: shared[ROUNDS] + 1}, state


def _gradients(
    local: Tensors, batch: Samples, rates: AdditiveRates, wanted: tuple[str, ...]
) -> tuple[Tensors, float]:
    """Gradients of a mini-batch's loss and weight decay, by differentiation; and its BCE."""
    leaves = {n: t.detach().requires_grad_(n in wanted) for n, t in local.items()}
    items_S = torch.from_numpy(batch.items_S).to(local[ITEM].device)
    labels_S = torch.from_numpy(batch.labels_S).to(local[ITEM])
    own_SD, copy_SD = leaves[OWN][items_S], leaves[ITEM][items_S]
    logits_S = (own_SD + copy_SD) @ leaves[WEIGHT] + leaves[BIAS]
    bce = functional.binary_cross_entropy_with_logits(logits_S, labels_S)
    apart, size = functional.mse_loss(own_SD, copy_SD), copy_SD.abs().mean()
    rows_R = torch.from_numpy(np.unique(batch.items_S)).to(items_S.device)
    decayed = (leaves[WEIGHT], leaves[BIAS], leaves[OWN][rows_R], leaves[ITEM][rows_R])
    penalty = sum((tensor.square().sum() for tensor in decayed), torch.zeros_like(bce)) / 2
    loss = bce - rates.difference * apart + rates.sparsity * size + rates.weight_decay * penalty
    gradients = torch.autograd.grad(loss, [leaves[n] for n in wanted])
    return dict(zip(wanted, gradients, strict=True)), float(bce.detach())
