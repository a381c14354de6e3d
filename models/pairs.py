"""A block's samples as distinct (user, item) pairs with weights.

With w the weight of a sample in the sliced loss, a pair scored s contributes
``total · softplus(s) − positive · s`` to its user's loss, where ``total`` sums w over the
pair's samples and ``positive`` over those labelled 1. So dL/ds = total · σ(s) − positive,
and an item drawn several times is scored once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from models.losses import sample_weights
from models.types import IntArray, Samples, block_items


@dataclass(frozen=True)
class Pairs:
    """Distinct pairs of a block, ordered by user, then item."""

    bounds: list[int]
    """User k owns the pairs ``bounds[k]:bounds[k + 1]``; U + 1 numbers."""
    users_P: Tensor
    """Position of each pair's user in the block (int64)."""
    items_R: Tensor
    """Distinct items of the block, ascending (int64)."""
    rows_P: Tensor
    """Position of each pair's item in ``items_R`` (int64)."""
    total_P: Tensor
    positive_P: Tensor

    def errors(self, logits: Tensor, pairs: slice) -> Tensor:
        """dL/ds of the pairs in ``pairs``."""
        return logits.sigmoid().mul_(self.total_P[pairs]).sub_(self.positive_P[pairs])

    def losses(self, logits_P: Tensor) -> Tensor:
        """Loss of each user (U,)."""
        # softplus in torch is cut off at 20; −logsigmoid(−s) is exact everywhere.
        loss_P = -functional.logsigmoid(-logits_P) * self.total_P - self.positive_P * logits_P
        return loss_P.new_zeros(len(self.bounds) - 1).index_add_(0, self.users_P, loss_P)


def distinct_pairs(
    samples_U: Sequence[Samples], num_items: int, loss_slice: int, dtype: torch.dtype
) -> Pairs:
    """Reduce the samples of a block of users to weighted distinct pairs.

    Raises:
        ValueError: for an item outside the catalogue.

    """
    lengths_U = np.array([len(samples) for samples in samples_U], dtype=np.int64)
    items = block_items(samples_U, num_items)
    keys = np.repeat(np.arange(len(lengths_U)), lengths_U) * num_items + items
    keys_P, pair = np.unique(keys, return_inverse=True)
    weights = np.concatenate([sample_weights(int(n), loss_slice) for n in lengths_U])
    labels = np.concatenate([samples.labels_S for samples in samples_U])
    users_P, items_P = keys_P // num_items, keys_P % num_items
    items_R, rows_P = np.unique(items_P, return_inverse=True)
    return Pairs(
        bounds=np.searchsorted(users_P, np.arange(len(lengths_U) + 1)).tolist(),
        users_P=torch.from_numpy(users_P),
        items_R=torch.from_numpy(items_R),
        rows_P=torch.from_numpy(rows_P),
        total_P=_weights(pair, weights, len(keys_P), dtype),
        positive_P=_weights(pair, weights * labels, len(keys_P), dtype),
    )


def _weights(
    pair: IntArray, weights: npt.NDArray[np.float64], size: int, dtype: torch.dtype
) -> Tensor:
    return torch.from_numpy(np.bincount(pair, weights, minlength=size)).to(dtype)


@dataclass(frozen=True)
class Group:
    """Consecutive users of a block whose pairs (N of them) are worked on together."""

    users: slice
    pairs: slice
    users_N: Tensor
    """Each pair's user, counted from the group's first."""

    def spread(self, values_UX: Tensor) -> Tensor:
        """A row for each pair, or one row that broadcasts when there is one user."""
        return values_UX if len(values_UX) == 1 else values_UX.index_select(0, self.users_N)

    def sums(self, values_NX: Tensor) -> Tensor:
        """Sums over each user's pairs (U, X)."""
        num_users = self.users.stop - self.users.start
        if num_users == 1:
            return values_NX.sum(0, keepdim=True)
        out = values_NX.new_zeros(num_users, values_NX.shape[1])
        return out.index_add_(0, self.users_N, values_NX)


def groups(pairs: Pairs, max_pairs: int) -> Iterator[Group]:
    """Cut a block into groups of at most ``max_pairs`` pairs; a larger user stands alone."""
    bounds, first = pairs.bounds, 0
    while first < len(bounds) - 1:
        last = first + 1
        while last < len(bounds) - 1 and bounds[last + 1] - bounds[first] <= max_pairs:
            last += 1
        rows = slice(bounds[first], bounds[last])
        yield Group(slice(first, last), rows, pairs.users_P[rows] - first)
        first = last
