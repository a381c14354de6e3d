"""Local mini-batch SGD of a block of users in matrix factorisation, in lock-step.

Step k takes the k-th mini-batch of every user that has one. Each user trains its own copy of
the item rows it has samples of: one flat table over the block's distinct (user, item) pairs.
Users share no entry of it, so a step of all of them is a step of each. A proximal term pulls
all rows of a user that has a mini-batch in the step, whether or not they are in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.local_sgd import Batches, SGDRates
from models.mf_block import Labelled, labelled
from models.reduce_samples import FlatSamples, distinct, flatten_samples
from models.tables import row_table
from models.types import IntArray

GATHERED_ROWS = 2048


@dataclass(frozen=True)
class _Batches:
    """Mini-batches of a block (B of them, S samples): step by step, in a step by user."""

    flat: FlatSamples
    """Its users are the batches."""
    owners_B: IntArray
    """Each batch's user."""
    ends: list[int]
    """Number of batches up to the end of each step."""


@dataclass(frozen=True)
class _Step:
    """One mini-batch (N samples in all) of each of V users."""

    number: int
    labels: Labelled
    users_V: Tensor
    """Position of each user in the block; ``labels`` counts the step's users only."""
    starts_V: Tensor
    """Position of each user's first sample."""
    pairs_N: Tensor
    """Each sample's row in the table of pairs."""


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
    def of(
        cls, rates: SGDRates, num_users: int, owners_P: IntArray, rows_PD: Tensor
    ) -> _Pull | None:
        """None where there is no term; then no row is copied either."""
        if rates.proximal == 0:
            return None
        bounds = np.searchsorted(owners_P, np.arange(num_users + 1)).tolist()
        return cls(rates.shared * rates.proximal, rows_PD.clone(), bounds)

    def back(self, rows_PD: Tensor, step: _Step) -> None:
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
    num_items, device = len(items_ID), items_ID.device
    batches = _in_steps(batches_U, num_items)
    keys_S = batches.owners_B[batches.flat.users_S] * num_items + batches.flat.items_S
    keys_P, pair_S = distinct(keys_S, len(batches_U) * num_items)
    owners_P, items_P, pairs_S = (
        torch.from_numpy(index).to(device)
        for index in (keys_P // num_items, keys_P % num_items, pair_S)
    )
    rows_PD, users_UD = items_ID.index_select(0, items_P), users_UD.clone()
    pull = _Pull.of(rates, len(batches_U), keys_P // num_items, rows_PD)
    losses_B = torch.cat(
        [_train(step, rows_PD, users_UD, rates, pull) for step in _steps(batches, pairs_S, rows_PD)]
    )
    _subtract_rows(rows_PD, items_ID, items_P)
    shares_B = 1 / np.array([len(own) for own in batches_U])[batches.owners_B]
    loss = float(losses_B @ torch.from_numpy(shares_B).to(losses_B))
    return LockStepped(owners_P, items_P, rows_PD, num_items, users_UD, loss)


def _in_steps(batches_U: Sequence[Batches], num_items: int) -> _Batches:
    batches, owners, ends = [], list[int](), list[int]()
    for step in range(max(len(own) for own in batches_U)):
        active = [user for user, own in enumerate(batches_U) if step < len(own)]
        batches += [batches_U[user][step] for user in active]
        owners += active
        ends.append(len(owners))
    # One slice a batch: its loss is the mean over its samples.
    longest = max(len(batch) for batch in batches)
    return _Batches(flatten_samples(batches, num_items, longest), np.array(owners), ends)


def _steps(batches: _Batches, pairs_S: Tensor, like: Tensor) -> Iterator[_Step]:
    """The steps in turn, with tensors of the dtype and on the device of ``like``."""
    flat = batches.flat
    bounds = np.concatenate([[0], flat.lengths_U.cumsum()])
    for number, (first, last) in enumerate(zip([0, *batches.ends], batches.ends, strict=False)):
        part = slice(bounds[first], bounds[last])
        own = FlatSamples(
            flat.lengths_U[first:last],
            flat.users_S[part] - first,
            flat.items_S[part],
            flat.labels_S[part],
            flat.weights_S[part],
        )
        users_V, starts_V = (
            torch.from_numpy(index).to(like.device)
            for index in (batches.owners_B[first:last], bounds[first:last] - bounds[first])
        )
        yield _Step(number, labelled(own, like), users_V, starts_V, pairs_S[part])


def _train(
    step: _Step, rows_PD: Tensor, users_UD: Tensor, rates: SGDRates, pull: _Pull | None
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
