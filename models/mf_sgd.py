"""Local mini-batch SGD of a block of users in matrix factorisation, in lock-step.

The steps are those of ``models.lockstep``. A proximal term pulls all rows of a user that has a
mini-batch in the step, whether or not they are in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.local_sgd import Batches, SGDRates
from models.lockstep import LockSteps, Pairs, Step
from models.tables import row_table

GATHERED_ROWS = 2048


@dataclass(frozen=True)
class _Pull:
    """The proximal term's steps: w <- w - ημ (w - w_t)."""

    factor: float
    """ημ, learning rate times weight of the term."""
    received_PD: Tensor
    """Each pair's row as it was received."""
    bounds: list[int]
    """Where each user's pairs start; the last entry is their number."""

    @classmethod
    def of(cls, rates: SGDRates, pairs: Pairs, rows_PD: Tensor) -> _Pull | None:
        """None where there is no term; then no row is copied either."""
        if rates.proximal == 0:
            return None
        owners_P = pairs.owners_P.cpu().numpy()
        bounds = np.searchsorted(owners_P, np.arange(pairs.num_users + 1)).tolist()
        return cls(rates.shared * rates.proximal, rows_PD.clone(), bounds)

    def back(self, rows_PD: Tensor, step: Step) -> None:
        """Pull the rows of the users that are in a step, in place; the first has none to pull."""
        for user in step.users_V.tolist() if step.number > 0 else []:
            own = slice(self.bounds[user], self.bounds[user + 1])
            rows_PD[own].lerp_(self.received_PD[own], self.factor)


@dataclass(frozen=True)
class LockStepped:
    """Outcome of a block: how far each pair's item row moved.

    Only one sum can be had of it, once: they work in place.
    """

    owners_P: Tensor
    items_P: Tensor
    movement_PD: Tensor
    num_items: int
    users_UD: Tensor
    """Users after training."""
    loss: float
    """Sum over users of the mean loss of a user's mini-batches."""

    def weighed(self, weights_U: Sequence[float]) -> Tensor:
        """Sum (I, D) of the users' movements, each times the user's weight."""
        like = self.movement_PD
        weights_P = torch.tensor(weights_U, device=like.device).to(like.dtype)[self.owners_P]
        return row_table(self.items_P, like.mul_(weights_P[:, None]), self.num_items)

    def weighed_by_length(self) -> tuple[Tensor, Tensor]:
        """Sum (I, D) of the users' movements, each times its L1 norm, and of these norms (I,)."""
        lengths_P = self.movement_PD.abs().sum(1)
        lengths_I = lengths_P.new_zeros(self.num_items).index_add_(0, self.items_P, lengths_P)
        moved_PD = self.movement_PD.mul_(lengths_P[:, None])
        return row_table(self.items_P, moved_PD, self.num_items), lengths_I


def lockstep_sgd(
    items_ID: Tensor, users_UD: Tensor, batches_U: Sequence[Batches], rates: SGDRates
) -> LockStepped:
    """Train all users of a block; inputs stay."""
    steps = LockSteps(batches_U, len(items_ID), items_ID)
    pairs, users_UD = steps.pairs, users_UD.clone()
    rows_PD = items_ID.index_select(0, pairs.items_P)
    pull = _Pull.of(rates, pairs, rows_PD)
    loss = steps.loss([_train(step, rows_PD, users_UD, rates, pull) for step in steps])
    _subtract_rows(rows_PD, items_ID, pairs.items_P)
    return LockStepped(pairs.owners_P, pairs.items_P, rows_PD, len(items_ID), users_UD, loss)


def _train(
    step: Step, rows_PD: Tensor, users_UD: Tensor, rates: SGDRates, pull: _Pull | None
) -> Tensor:
    """One SGD step of each user, in place; returns the loss of each mini-batch (V,)."""
    labels, pairs_N = step.labels, step.pairs_N
    users_ND = users_UD.index_select(0, step.users_V).index_select(0, labels.users_S)
    scores_N = rows_PD.index_select(0, pairs_N).mul_(users_ND).sum(1)
    errors_N = labels.errors(scores_N)
    gradients_VD = functional.embedding_bag(
        pairs_N, rows_PD, step.starts_V, mode="sum", per_sample_weights=errors_N
    )
    if pull is not None:  # before the gradient's step: both are taken at the same point
        pull.back(rows_PD, step)
    # Rates go into the errors: torch adds rows five times faster without a factor of its own.
    rows_PD.index_add_(0, pairs_N, users_ND.mul_((-rates.shared * errors_N)[:, None]))
    users_UD.index_add_(0, step.users_V, gradients_VD, alpha=-rates.private)
    return labels.losses(scores_N)


def _subtract_rows(rows_PD: Tensor, items_ID: Tensor, items_P: Tensor) -> None:
    """Take each pair's item row off, in place; a few at a time, which never leave the cache."""
    for start in range(0, len(items_P), GATHERED_ROWS):
        part = slice(start, start + GATHERED_ROWS)
        rows_PD[part].sub_(items_ID.index_select(0, items_P[part]))
