"""Co-occurrence counts of items as a packed triangle, and what is solved from them.

The Gram matrix G = Σᵤ xᵤ xᵤᵀ of users' rows of 0 and 1 has the items' counts on its diagonal and,
for each pair i < j, the number of users who have both. Pair (i, j) lies at j(j-1)/2 + i, which
does not depend on the catalogue's size. ``P`` here is the number of pairs, I(I-1)/2.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from models.types import IntArray

PIECE = 1 << 20
"""Pairs that are listed at once."""
SLAB = 512
"""Rows of a matrix that are mirrored at once."""


def num_pairs(num_items: int) -> int:
    """Number of pairs (P) of different items."""
    return num_items * (num_items - 1) // 2


def item_pairs(items_S: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Pairs i < j of distinct items in ascending order, pieces of about a million at a time.

    All items, 0 … I-1, give the places 0 … P-1 in order.
    """
    total, start = num_pairs(len(items_S)), 0
    ends = np.arange(len(items_S)) * np.arange(1, len(items_S) + 1) // 2  # pairs up to row k
    while start < total:
        first = int(np.searchsorted(ends, start, side="right"))
        stop = max(first + 1, int(np.searchsorted(ends, start + PIECE, side="right")))
        rows = np.arange(first, stop)
        lower = np.arange(start, ends[stop - 1]) - np.repeat(ends[rows] - rows, rows)
        yield items_S[lower], np.repeat(items_S[rows], rows)
        start = int(ends[stop - 1])


def places(lower_P: IntArray, upper_P: IntArray) -> IntArray:
    """Where pairs i < j lie in the triangle."""
    found: IntArray = upper_P * (upper_P - 1) // 2 + lower_P
    return found


def gram(counts_I: Tensor, pairs_P: Tensor) -> Tensor:
    """The Gram matrix (I, I) in float64 from its diagonal and its triangle."""
    num_items = len(counts_I)
    gram_II = torch.zeros(num_items, num_items, dtype=torch.float64, device=counts_I.device)
    for row in range(1, num_items):
        gram_II[row, :row] = pairs_P[num_pairs(row) : num_pairs(row + 1)]
    for start in range(0, num_items, SLAB):
        stop = start + SLAB
        corner = gram_II[start:stop, start:stop]
        corner += corner.tril(-1).T
        gram_II[start:stop, stop:] = gram_II[stop:, start:stop].T
    gram_II.diagonal().copy_(counts_I)
    return gram_II


def ease_weights(gram_II: Tensor, l2: float) -> Tensor:
    """B = I − P diag(P)⁻¹ with P = (G + λI)⁻¹ in float64; overwrites ``gram_II``, and is there.

    Steck, WWW 2019, equation 8. No second matrix (I, I) is held.

    Raises:
        ValueError: when G + λI is not positive definite in float64.

    """
    gram_II.diagonal().add_(l2)
    if not _factor(gram_II):
        raise ValueError(f"G + λI is not positive definite with l2={l2:g}: raise it")
    torch.cholesky_inverse(gram_II.T, out=gram_II.T)
    gram_II /= -gram_II.diagonal().clone()
    gram_II.fill_diagonal_(0.0)
    return gram_II


def shift_of(counts_I: Tensor, pairs_P: Tensor, l2: float) -> float:
    """The first s of 0, λ, 2λ, 4λ, … for which G + (s + λ/2)I is positive definite.

    For an estimated matrix, of which noise may have made eigenvalues negative: with s added to λ
    none of them is below λ/2. One matrix (I, I) of float64 is held.
    """
    shift = 0.0
    while True:
        shifted_II = gram(counts_I, pairs_P)
        shifted_II.diagonal().add_(shift + l2 / 2)
        if _factor(shifted_II):
            return shift
        del shifted_II  # before the next one is made
        shift = 2 * shift or l2


def _factor(matrix_II: Tensor) -> bool:
    """Put the Cholesky factor of a symmetric matrix in its place, transposed; False: indefinite."""
    # LAPACK goes by columns: the transpose of a symmetric matrix is itself in that order, and
    # what is written to it needs no second matrix.
    columns_II = matrix_II.T
    failed = torch.zeros((), dtype=torch.int32, device=matrix_II.device)
    torch.linalg.cholesky_ex(columns_II, out=(columns_II, failed))
    return not failed
