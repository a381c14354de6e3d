"""A block's samples as distinct (user, item) pairs with weights.

With w the weight of a sample in the sliced loss, a pair scored s contributes
``total · softplus(s) − positive · s`` to its user's loss, where ``total`` sums w over the
pair's samples and ``positive`` over those labelled 1. So dL/ds = total · σ(s) − positive,
and an item drawn several times is scored once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.reduce_samples import distinct, flatten_samples
from models.types import Samples


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
    samples_U: Sequence[Samples], num_items: int, loss_slice: int, like: Tensor
) -> Pairs:
    """Reduce the samples of a block of users to weighted distinct pairs.

    Weights have the precision of ``like``, and everything lies on its device.

    Raises:
        ValueError: for an item outside the catalogue.

    """
    flat = flatten_samples(samples_U, num_items, loss_slice)
    items_R, columns_S = distinct(flat.items_S, num_items)
    num_users, width = len(flat.lengths_U), max(1, len(items_R))
    cells_P, pair_S = distinct(flat.users_S * width + columns_S, num_users * width)
    users_P, rows_P = np.divmod(cells_P, width)
    total_P = np.bincount(pair_S, flat.weights_S, minlength=len(cells_P))
    positive_P = np.bincount(pair_S, flat.weights_S * flat.labels_S, minlength=len(cells_P))
    return Pairs(
        bounds=np.searchsorted(users_P, np.arange(num_users + 1)).tolist(),
        users_P=torch.from_numpy(users_P).to(like.device),
        items_R=torch.from_numpy(items_R).to(like.device),
        rows_P=torch.from_numpy(rows_P).to(like.device),
        total_P=torch.from_numpy(total_P).to(like),
        positive_P=torch.from_numpy(positive_P).to(like),
    )


@dataclass(frozen=True)
class Group:
    """Consecutive users of a block whose pairs (N of them) are worked on together."""

    users: slice
    pairs: slice
    sizes: list[int]
    """Pairs of each user."""

    def __len__(self) -> int:
        return sum(self.sizes)


def groups(pairs: Pairs, max_pairs: int) -> Iterator[Group]:
    """Cut a block into groups of at most ``max_pairs`` pairs; a larger user stands alone."""
    bounds, first = pairs.bounds, 0
    while first < len(bounds) - 1:
        last = first + 1
        while last < len(bounds) - 1 and bounds[last + 1] - bounds[first] <= max_pairs:
            last += 1
        sizes = [b - a for a, b in pairwise(bounds[first : last + 1])]
        yield Group(slice(first, last), slice(bounds[first], bounds[last]), sizes)
        first = last
