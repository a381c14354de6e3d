"""FedRAP's local training of a block of users at once: a scorer over the sum of two item tables.

The score of item i is w · (D_i + C_i) + b, with D the user's own table and C its copy of the
shared one. A mini-batch of N samples of items i(n) has the loss

    L = 1/N Σ_n BCE - λ/(N·width) Σ_n ‖D_i(n) - C_i(n)‖² + μ/(N·width) Σ_n ‖C_i(n)‖₁

where an item counts as often as it occurs: λ drives the tables apart, μ makes C sparse. One SGD
step goes down L plus weight decay of the scorer and of the mini-batch's rows. With e_n the
derivative of the mean BCE by the score of sample n, sample n adds to the gradients

    of D: e_n w - 2λ/(N·width) (D - C),   of C: e_n w + 2λ/(N·width) (D - C) + μ/(N·width) sign C

Source: FedRAP (ICLR 2024, arXiv 2301.09109) and its public code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.local_sgd import Batches
from models.lockstep import LockSteps, Pairs, Step


@dataclass(frozen=True)
class AdditiveRates:
    """What the local steps of one round are made with."""

    scorer: float
    """Learning rate of (w, b) at the first mini-batch."""
    own: float
    """The same of the user's own table D."""
    items: float
    """The same of its copy of the shared table C."""
    batch_decay: float
    """All rates are multiplied by this after each mini-batch."""
    weight_decay: float
    difference: float
    """λ."""
    sparsity: float
    """μ."""

    def at(self, step: int) -> tuple[float, float, float]:
        """Learning rates of scorer, D and C at a mini-batch, counted from 0."""
        factor = self.batch_decay**step
        return self.scorer * factor, self.own * factor, self.items * factor


@dataclass
class Additive:
    """State of a block in training, and its outcome."""

    pairs: Pairs
    own_PD: Tensor
    """Rows of the users' own tables."""
    copy_PD: Tensor
    """Rows of the users' copies of the shared table."""
    weights_UD: Tensor
    biases_U: Tensor
    loss: float = 0.0
    """Sum over users of the mean over mini-batches of the BCE before the step."""


def additive_sgd(
    items_ID: Tensor,
    tables_UID: Tensor,
    weights_UD: Tensor,
    biases_U: Tensor,
    batches_U: Sequence[Batches],
    rates: AdditiveRates,
) -> Additive:
    """Train all users of a block in lock-step, each from its own table (U, I, D); inputs stay."""
    steps = LockSteps(batches_U, len(items_ID), items_ID)
    pairs = steps.pairs
    own_PD = tables_UID[pairs.owners_P, pairs.items_P]
    copy_PD = items_ID.index_select(0, pairs.items_P)
    block = Additive(pairs, own_PD, copy_PD, weights_UD.clone(), biases_U.clone())
    block.loss = steps.loss([_train(step, block, rates) for step in steps])
    return block


def _train(step: Step, block: Additive, rates: AdditiveRates) -> Tensor:
    """One step of each user, in place; returns the BCE of each mini-batch (V,)."""
    labels, users_N = step.labels, step.users_V.index_select(0, step.labels.users_S)
    own_ND = block.own_PD.index_select(0, step.pairs_N)
    copy_ND = block.copy_PD.index_select(0, step.pairs_N)
    weights_ND, sum_ND = block.weights_UD.index_select(0, users_N), own_ND + copy_ND
    scores_N = (sum_ND * weights_ND).sum(1).add_(block.biases_U.index_select(0, users_N))
    errors_N = labels.errors(scores_N)
    scorer_lr, own_lr, items_lr = rates.at(step.number)
    _decay(step, block, rates)
    block.weights_UD.index_add_(0, users_N, sum_ND.mul_(errors_N[:, None]), alpha=-scorer_lr)
    block.biases_U.index_add_(0, users_N, errors_N, alpha=-scorer_lr)
    share_N1 = _shares(step, own_ND)
    apart_ND = (own_ND - copy_ND).mul_(2 * rates.difference * share_N1)
    data_ND = weights_ND.mul_(errors_N[:, None])
    sparse_ND = copy_ND.sign().mul_(rates.sparsity * share_N1)
    block.own_PD.index_add_(0, step.pairs_N, data_ND - apart_ND, alpha=-own_lr)
    copy_gradients_ND = data_ND.add_(apart_ND).add_(sparse_ND)
    block.copy_PD.index_add_(0, step.pairs_N, copy_gradients_ND, alpha=-items_lr)
    return labels.losses(scores_N)


def _shares(step: Step, rows_ND: Tensor) -> Tensor:
    """One over the entries of a sample's mini-batch, N·width (N, 1)."""
    entries_V = step.lengths_V.to(rows_ND.dtype) * rows_ND.shape[1]
    return entries_V.reciprocal()[step.labels.users_S][:, None]


def _decay(step: Step, block: Additive, rates: AdditiveRates) -> None:
    """Weight decay at the point before the step, in place: of each of the batch's rows once."""
    if rates.weight_decay == 0:
        return
    scorer_lr, own_lr, items_lr = rates.at(step.number)
    factors_U = torch.ones_like(block.biases_U)
    factors_U[step.users_V] -= scorer_lr * rates.weight_decay
    block.weights_UD.mul_(factors_U[:, None])
    block.biases_U.mul_(factors_U)
    for rows_PD, rate in ((block.own_PD, own_lr), (block.copy_PD, items_lr)):
        factors_P = torch.ones_like(rows_PD[:, 0])
        factors_P[step.pairs_N] = 1 - rate * rates.weight_decay
        rows_PD.mul_(factors_P[:, None])
