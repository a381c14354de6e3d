"""Names and small records shared by every layer.

Shape legend for the whole code base: ``U`` users in a block, ``I`` items in the
catalogue, ``S`` samples of a user, ``P`` distinct (user, item) pairs of a block,
``R`` distinct item rows of a block, ``D`` embedding width, ``K`` cut-off.
``scores_US`` and ``item_emb_ID`` are read accordingly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.tables import add_table

Tensors = dict[str, Tensor]
"""Named tensors: shared parameters, private parameters, gradients, moments."""

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Samples:
    """One user's labelled training samples of one local epoch, in training order.

    ``items_S`` holds item indices (int64), ``labels_S`` 1.0 for a positive and 0.0 for
    a negative (float32).
    """

    items_S: IntArray
    labels_S: FloatArray

    def __len__(self) -> int:
        return len(self.items_S)


def block_items(samples_U: Sequence[Samples], num_items: int) -> IntArray:
    """Items of all samples of a block, user after user.

    Raises:
        ValueError: for an item outside the catalogue.

    """
    items_S = np.concatenate([samples.items_S for samples in samples_U])
    if len(items_S) and not 0 <= items_S.min() <= items_S.max() < num_items:
        raise ValueError(f"item indices must lie in 0..{num_items - 1}")
    return items_S


def touched_items(samples: Sequence[Samples]) -> IntArray:
    """Distinct items of one user's samples, ascending."""
    return np.unique(np.concatenate([part.items_S for part in samples]))


def positive_items(samples: Sequence[Samples]) -> IntArray:
    """Distinct items of one user's positives, ascending."""
    return np.unique(np.concatenate([part.items_S[part.labels_S > 0] for part in samples]))


@dataclass(frozen=True)
class Update:
    """What one user, or the sum of several, contributes to the shared parameters.

    ``tensors`` has the names and shapes of the shared parameters; an item table of which few
    rows are touched may be sparse, as ``models.tables`` describes. ``weight`` is what the
    server divides by (1 a user, or the user's sample count). ``row_weights`` holds, for
    methods that average an item row over the users that touched it, a (I,) tensor a table.
    """

    tensors: Tensors
    weight: float
    row_weights: Tensors | None = None

    def mean(self) -> Tensors:
        """By ``weight``, or row by row where rows are weighted; a row of weight zero stays zero."""
        rows = self.row_weights or {}
        return {n: t / _divisor(t, self.weight, rows.get(n)) for n, t in self.tensors.items()}


def _divisor(table: Tensor, weight: float, row_weights: Tensor | None) -> Tensor | float:
    if row_weights is None:
        return weight
    # A row that no user touched has a zero sum: any divisor leaves it where it is.
    divisors = torch.where(row_weights > 0, row_weights, torch.ones_like(row_weights))
    return divisors.reshape(-1, *[1] * (table.dim() - 1))


@dataclass(frozen=True)
class History:
    """Distinct training items of users, ascending in each, user after user.

    ``items_S`` (int64) of all users, ``lengths_U`` how many each of them has.
    """

    items_S: IntArray
    lengths_U: IntArray

    @cached_property
    def users(self) -> IntArray:
        """Each item's user, counted from 0."""
        return np.repeat(np.arange(len(self.lengths_U)), self.lengths_U)

    def one_hot(self, num_items: int) -> Tensor:
        """Rows of 0 and 1 over the catalogue (U, I), float32."""
        rows_UI = torch.zeros(len(self.lengths_U), num_items)
        rows_UI[torch.from_numpy(self.users), torch.from_numpy(self.items_S)] = 1.0
        return rows_UI


def positive_history(epochs_U: Sequence[Sequence[Samples]]) -> History:
    """Distinct items of the positives of a block of users."""
    items_U = [positive_items(epochs) for epochs in epochs_U]
    return History(np.concatenate(items_U), np.array([len(items) for items in items_U]))


@dataclass(frozen=True)
class ClientResult:
    """Outcome of one user's local training: update, new private parameters, metric values.

    ``individual`` is what the user uploads where the server sees each user's upload.
    """

    update: Update
    private: Tensors
    metrics: Mapping[str, float]
    individual: Tensors | None = None


@dataclass(frozen=True)
class CohortResult:
    """Outcome of a block of users: summed update, private rows (U, …), summed metrics.

    ``individual`` (U, …) as in :class:`ClientResult`.
    """

    update: Update
    private: Tensors
    metrics: Mapping[str, float]
    individual: Tensors | None = None


@dataclass(frozen=True)
class IndividualUpdates:
    """Uploads of single users, by ascending global index: ``tensors`` (U, …)."""

    users_U: IntArray
    tensors: Tensors

    def __len__(self) -> int:
        return len(self.users_U)


@dataclass(frozen=True)
class UserRanks:
    """Where each user's held-out items were ranked, by ascending global index."""

    users_U: IntArray
    ranks: Mapping[str, IntArray]
    """By ``test/sampled``, ``test/full``, ``validation/sampled``, …: the rank (U,) int64 of the
    user's held-out item, 0 the best; -1 for a user without one."""

    def __len__(self) -> int:
        return len(self.users_U)


class SumOfUpdates:
    """Running sum of updates, so that a block's memory does not grow with its users."""

    def __init__(self, template: Tensors) -> None:
        self._tensors = {n: torch.zeros_like(t) for n, t in template.items()}
        self._rows: Tensors | None = None
        self._weight = 0.0

    def add(self, update: Update) -> None:
        """Add one update in place."""
        for name, tensor in update.tensors.items():
            add_table(self._tensors[name], tensor)
        self._weight += update.weight
        if update.row_weights is not None:
            new = update.row_weights
            self._rows = new if self._rows is None else {n: self._rows[n] + new[n] for n in new}

    def result(self) -> Update:
        """The sum so far (not a copy)."""
        return Update(self._tensors, self._weight, self._rows)
