"""A block's samples as distinct (user, item) pairs: an item drawn several times is scored once.

A user's cross-entropy is a sum over its pairs. With w the weight of a sample, a pair scored s
contributes ``total · softplus(s) − positive · s``, where ``total`` sums w over the pair's samples
and ``positive`` over those labelled 1. So dL/ds = total · σ(s) − positive.

A ranking loss goes by samples: their scores are gathered from the pairs, and dL/ds of a pair
is the sum over its samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.losses import Loss
from models.ranked import Ranked, ranked
from models.reduce_samples import distinct, flatten_samples
from models.types import Samples


@dataclass(frozen=True)
class Pairs(ABC):
    """Distinct pairs of a block, ordered by user, then item, and the loss of their scores."""

    bounds: list[int]
    """User k owns the pairs ``bounds[k]:bounds[k + 1]``; U + 1 numbers."""
    users_P: Tensor
    """Position of each pair's user in the block (int64)."""
    items_R: Tensor
    """Distinct items of the block, ascending (int64)."""
    rows_P: Tensor
    """Position of each pair's item in ``items_R`` (int64)."""

    @abstractmethod
    def errors(self, logits_N: Tensor, users: slice) -> Tensor:
        """dL/ds (N,) of the pairs of consecutive users."""

    @abstractmethod
    def losses(self, logits_P: Tensor) -> Tensor:
        """Loss of each user (U,)."""

    def of(self, users: slice) -> slice:
        """The pairs of consecutive users."""
        return slice(self.bounds[users.start], self.bounds[users.stop])


@dataclass(frozen=True)
class WeightedPairs(Pairs):
    """Pairs under the binary cross-entropy."""

    total_P: Tensor
    positive_P: Tensor

    def errors(self, logits_N: Tensor, users: slice) -> Tensor:
        """As in ``Pairs``."""
        pairs = self.of(users)
        return logits_N.sigmoid().mul_(self.total_P[pairs]).sub_(self.positive_P[pairs])

    def losses(self, logits_P: Tensor) -> Tensor:
        """As in ``Pairs``."""
        # softplus in torch is cut off at 20; −logsigmoid(−s) is exact everywhere.
        loss_P = -functional.logsigmoid(-logits_P) * self.total_P - self.positive_P * logits_P
        return loss_P.new_zeros(len(self.bounds) - 1).index_add_(0, self.users_P, loss_P)


@dataclass(frozen=True)
class RankedPairs(Pairs):
    """Pairs under a ranking loss."""

    ranked: Ranked
    pair_S: Tensor
    """Position of each sample's pair."""
    starts: list[int]
    """User k owns the samples ``starts[k]:starts[k + 1]``; U + 1 numbers."""

    def errors(self, logits_N: Tensor, users: slice) -> Tensor:
        """As in ``Pairs``."""
        start, stop = self.starts[users.start], self.starts[users.stop]
        own_S = self.pair_S[start:stop] - self.bounds[users.start]
        errors_S = self.ranked.errors(logits_N.index_select(0, own_S), start)
        return torch.zeros_like(logits_N).index_add_(0, own_S, errors_S)

    def losses(self, logits_P: Tensor) -> Tensor:
        """As in ``Pairs``."""
        return self.ranked.losses(logits_P.index_select(0, self.pair_S))


def distinct_pairs(samples_U: Sequence[Samples], num_items: int, loss: Loss, like: Tensor) -> Pairs:
    """Reduce the samples of a block of users to distinct pairs.

    Weights have the precision of ``like``, and everything lies on its device.

    Raises:
        ValueError: for an item outside the catalogue, or as :func:`models.ranked.ranked`.

    """
    flat = flatten_samples(samples_U, num_items, loss.slice_size)
    items_R, columns_S = distinct(flat.items_S, num_items)
    num_users, width = len(flat.lengths_U), max(1, len(items_R))
    cells_P, pair_S = distinct(flat.users_S * width + columns_S, num_users * width)
    users_P, rows_P = np.divmod(cells_P, width)
    bounds: list[int] = np.searchsorted(users_P, np.arange(num_users + 1)).tolist()
    users, items, rows, pair = (
        torch.from_numpy(index).to(like.device) for index in (users_P, items_R, rows_P, pair_S)
    )
    if loss.ranking is not None:
        starts: list[int] = [0, *flat.lengths_U.cumsum().tolist()]
        own = ranked(flat, loss.ranking, like)
        return RankedPairs(bounds, users, items, rows, own, pair, starts)
    total_P = np.bincount(pair_S, flat.weights_S, minlength=len(cells_P))
    positive_P = np.bincount(pair_S, flat.weights_S * flat.labels_S, minlength=len(cells_P))
    total, positive = (torch.from_numpy(weight_P).to(like) for weight_P in (total_P, positive_P))
    return WeightedPairs(bounds, users, items, rows, total, positive)


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
