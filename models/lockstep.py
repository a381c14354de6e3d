"""A block of users that train item rows of their own in lock-step, a mini-batch of each a step.

Step k takes the k-th mini-batch of every user that has one. Each user trains its own copy of
the item rows it has samples of: one flat table over the block's distinct (user, item) pairs.
Users share no entry of it, so a step of all of them is a step of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.local_sgd import Batches
from models.mf_block import Labelled, labelled
from models.reduce_samples import FlatSamples, distinct, flatten_samples
from models.tables import row_table
from models.types import IntArray, Samples


@dataclass(frozen=True)
class Step:
    """One mini-batch (N samples in all) of each of V users."""

    number: int
    """From 0: how many steps each of the users has made before."""
    labels: Labelled
    """Counts the step's users only; a mini-batch's loss is the mean over its samples."""
    users_V: Tensor
    """Position of each user in the block."""
    starts_V: Tensor
    """Position of each user's first sample."""
    lengths_V: Tensor
    """Number of each user's samples."""
    pairs_N: Tensor
    """Each sample's row in the table of pairs."""


@dataclass(frozen=True)
class Pairs:
    """The distinct (user, item) pairs (P) of a block, by user and then by item."""

    owners_P: Tensor
    items_P: Tensor
    num_users: int

    def moved(self, rows_PD: Tensor, items_ID: Tensor) -> Tensor:
        """Sum over users of how far the rows lie from the shared table (I, D); may be sparse."""
        movement_PD = rows_PD - items_ID.index_select(0, self.items_P)
        return row_table(self.items_P, movement_PD, len(items_ID))

    def tables(self, rows_PD: Tensor, items_ID: Tensor) -> Tensor:
        """Each user's table (U, I, D): the shared one but for the user's own rows."""
        return self.put(rows_PD, items_ID.expand(self.num_users, *items_ID.shape))

    def put(self, rows_PD: Tensor, tables_UID: Tensor) -> Tensor:
        """Copies of the users' tables with the given rows in their places."""
        tables_UID = tables_UID.clone(memory_format=torch.contiguous_format)
        tables_UID[self.owners_P, self.items_P] = rows_PD
        return tables_UID


class LockSteps:
    """The steps of a block; iterate to have them in turn."""

    def __init__(self, batches_U: Sequence[Batches], num_items: int, like: Tensor) -> None:
        """``like``: dtype and device of the tensors to come.

        Raises:
            ValueError: for an item outside the catalogue.

        """
        batches, owners, self._ends = _by_step(batches_U)
        # One slice a batch: its loss is the mean over its samples.
        longest = max(len(batch) for batch in batches)
        self._flat = flatten_samples(batches, num_items, longest)
        self._owners_B = np.array(owners)
        self._counts_U = np.array([len(own) for own in batches_U])
        self._like = like
        keys_S = self._owners_B[self._flat.users_S] * num_items + self._flat.items_S
        keys_P, pair_S = distinct(keys_S, len(batches_U) * num_items)
        self._pairs_S = self._tensor(pair_S)
        owners_P, items_P = self._tensor(keys_P // num_items), self._tensor(keys_P % num_items)
        self.pairs = Pairs(owners_P, items_P, len(batches_U))

    def __iter__(self) -> Iterator[Step]:
        bounds_B = np.concatenate([[0], self._flat.lengths_U.cumsum()])
        for number, (first, last) in enumerate(zip([0, *self._ends], self._ends, strict=False)):
            part = slice(int(bounds_B[first]), int(bounds_B[last]))
            yield Step(
                number,
                labelled(_cut(self._flat, first, last, part), self._like),
                self._tensor(self._owners_B[first:last]),
                self._tensor(bounds_B[first:last] - bounds_B[first]),
                self._tensor(self._flat.lengths_U[first:last]),
                self._pairs_S[part],
            )

    def loss(self, losses: Sequence[Tensor]) -> float:
        """Sum over users of the mean over a user's mini-batches, of losses (V,) by step."""
        losses_B = torch.cat(list(losses))
        shares_B = 1 / self._counts_U[self._owners_B]
        return float(losses_B @ torch.from_numpy(shares_B).to(losses_B))

    def _tensor(self, index: IntArray) -> Tensor:
        return torch.from_numpy(index).to(self._like.device)


def _by_step(batches_U: Sequence[Batches]) -> tuple[list[Samples], list[int], list[int]]:
    """All batches step by step, the user of each, and how many end with each step."""
    batches, owners, ends = list[Samples](), list[int](), list[int]()
    for step in range(max(len(own) for own in batches_U)):
        active = [user for user, own in enumerate(batches_U) if step < len(own)]
        batches += [batches_U[user][step] for user in active]
        owners += active
        ends.append(len(owners))
    return batches, owners, ends


def _cut(flat: FlatSamples, first: int, last: int, part: slice) -> FlatSamples:
    """Batches ``first`` to ``last``, whose samples are ``part``."""
    return FlatSamples(
        flat.lengths_U[first:last],
        flat.users_S[part] - first,
        flat.items_S[part],
        flat.labels_S[part],
        flat.weights_S[part],
    )
