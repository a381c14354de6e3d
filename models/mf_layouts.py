"""Two layouts of the score algebra of a block of users in matrix factorisation.

Scores, user gradients and item gradients of a block are three products with a (U, I) matrix
that is filled only where a user has a sample. ``DenseCells`` holds that matrix whole, which
is fast while it is small beside the samples; ``SparseRows`` gathers and scatters the item
rows of the samples, whatever the catalogue's size. Both give the same numbers up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from models.reduce_samples import FlatSamples, distinct
from models.tables import row_table

DENSE_CELLS_PER_SAMPLE = 16
"""Up to so many cells a sample the whole matrix wins: a cell costs three multiply-adds a
factor at full speed, a sample several passes over rows that may lie anywhere."""


class Layout(Protocol):
    """Where the samples of a block lie in its score matrix."""

    def scores(self, users_UD: Tensor) -> Tensor:
        """Scores of the samples (S,)."""
        ...

    def squared_scores(self, users_UD: Tensor, eta: float) -> Tensor:
        """Scores of the samples (S,) by (|q| + η)² and p² in place of q and p."""
        ...

    def spread(self, errors_S: Tensor) -> Tensor:
        """Lay out the samples' derivatives of the loss, as the methods below take them."""
        ...

    def by_pair(self, spread: Tensor) -> tuple[Tensor, Tensor]:
        """Errors summed over a user's samples of an item: norm (U, 1), value by sample (S,)."""
        ...

    def user_gradient(self, spread: Tensor) -> Tensor:
        """Derivative by the user vectors (U, D)."""
        ...

    def item_gradient(self, spread: Tensor, users_UD: Tensor) -> Tensor:
        """Derivative by the item rows (I, D), dense or sparse (``models.tables``)."""
        ...


def layout_of(flat: FlatSamples, items_ID: Tensor) -> Layout:
    """The faster layout for a block, on the device of ``items_ID``."""
    num_users, num_items = len(flat.lengths_U), len(items_ID)
    if num_users * num_items <= DENSE_CELLS_PER_SAMPLE * len(flat.items_S):
        return dense_cells(flat, items_ID)
    return sparse_rows(flat, items_ID)


def row_dots(left_XD: Tensor, left_S: Tensor, right_YD: Tensor, right_S: Tensor) -> Tensor:
    """Dot products (S,) of gathered rows of two tables."""
    return left_XD.index_select(0, left_S).mul_(right_YD.index_select(0, right_S)).sum(1)


# ---- dense ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class DenseCells:
    """A cell for each user and item of the catalogue; errors are spread to (U, I)."""

    items_ID: Tensor
    num_users: int
    cells_S: Tensor
    """Position of each sample in the flattened matrix."""

    def scores(self, users_UD: Tensor) -> Tensor:
        """All scores of the block, of which the samples' are taken."""
        return (users_UD @ self.items_ID.T).reshape(-1).index_select(0, self.cells_S)

    def squared_scores(self, users_UD: Tensor, eta: float) -> Tensor:
        """As in ``Layout``."""
        squares_ID = self.items_ID.abs().add_(eta).square_()
        return (users_UD.square() @ squares_ID.T).reshape(-1).index_select(0, self.cells_S)

    def spread(self, errors_S: Tensor) -> Tensor:
        """Samples of one item add up in its cell (U, I)."""
        cells = errors_S.new_zeros(self.num_users * len(self.items_ID))
        return cells.index_add_(0, self.cells_S, errors_S).reshape(self.num_users, -1)

    def by_pair(self, spread: Tensor) -> tuple[Tensor, Tensor]:
        """As in ``Layout``."""
        norms_U1: Tensor = torch.linalg.vector_norm(spread, dim=1, keepdim=True)
        return norms_U1, spread.reshape(-1).index_select(0, self.cells_S)

    def user_gradient(self, spread: Tensor) -> Tensor:
        """As in ``Layout``."""
        return spread @ self.items_ID

    def item_gradient(self, spread: Tensor, users_UD: Tensor) -> Tensor:
        """As in ``Layout``, dense."""
        return spread.T @ users_UD


def dense_cells(flat: FlatSamples, items_ID: Tensor) -> DenseCells:
    """Dense layout of a block."""
    cells_S = torch.from_numpy(flat.users_S * len(items_ID) + flat.items_S).to(items_ID.device)
    return DenseCells(items_ID, len(flat.lengths_U), cells_S)


# ---- sparse --------------------------------------------------------------------------------
@dataclass(frozen=True)
class SparseRows:
    """The item rows of the samples; errors stay one a sample."""

    items_ID: Tensor
    flat: FlatSamples
    users_S: Tensor
    rows_S: Tensor
    """Each sample's item."""
    starts_U: Tensor
    """Position of each user's first sample."""

    def scores(self, users_UD: Tensor) -> Tensor:
        """A dot product a sample."""
        return row_dots(self.items_ID, self.rows_S, users_UD, self.users_S)

    def squared_scores(self, users_UD: Tensor, eta: float) -> Tensor:
        """As in ``Layout``; the catalogue may be far larger than the samples."""
        squares_SD = self.items_ID.index_select(0, self.rows_S).abs_().add_(eta).square_()
        return squares_SD.mul_(users_UD.square().index_select(0, self.users_S)).sum(1)

    def spread(self, errors_S: Tensor) -> Tensor:
        """As they are."""
        return errors_S

    def by_pair(self, spread: Tensor) -> tuple[Tensor, Tensor]:
        """As in ``Layout``; the only use of distinct pairs."""
        num_users, num_items = len(self.flat.lengths_U), len(self.items_ID)
        keys_S = self.flat.users_S * num_items + self.flat.items_S
        keys_P, pair_S = distinct(keys_S, num_users * num_items)
        users_P, pairs_S = (
            torch.from_numpy(index).to(spread.device) for index in (keys_P // num_items, pair_S)
        )
        errors_P = spread.new_zeros(len(keys_P)).index_add_(0, pairs_S, spread)
        squares_U = spread.new_zeros(num_users).index_add_(0, users_P, errors_P.square())
        return squares_U.sqrt_()[:, None], errors_P.index_select(0, pairs_S)

    def user_gradient(self, spread: Tensor) -> Tensor:
        """As in ``Layout``."""
        return functional.embedding_bag(
            self.rows_S, self.items_ID, self.starts_U, mode="sum", per_sample_weights=spread
        )

    def item_gradient(self, spread: Tensor, users_UD: Tensor) -> Tensor:
        """As in ``Layout``, sparse in a large catalogue."""
        rows_SD = users_UD.index_select(0, self.users_S).mul_(spread[:, None])
        return row_table(self.rows_S, rows_SD, len(self.items_ID))


def sparse_rows(flat: FlatSamples, items_ID: Tensor) -> SparseRows:
    """Sparse layout of a block."""
    starts_U = flat.lengths_U.cumsum() - flat.lengths_U
    users_S, rows_S, starts = (
        torch.from_numpy(index).to(items_ID.device)
        for index in (flat.users_S, flat.items_S, starts_U)
    )
    return SparseRows(items_ID, flat, users_S, rows_S, starts)
