"""The items' half of implicit alternating least squares, from sums over users.

Hu, Koren & Volinsky (ICDM 2008), equation 5: with the users' vectors p fixed, item i is at
q = (G + α Sᵢ + λI)⁻¹ (1 + α) tᵢ, where G sums ppᵀ over all users, Sᵢ and tᵢ sum ppᵀ and p over
those who have the item. Solved for a block of coordinates with the others fixed it is a step of
iALS++ (Rendle et al., arXiv 2110.14044), which needs the block's rows of G and Sᵢ alone.
``P`` products of coordinates, ``B`` coordinates of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from models.als import ImplicitCost
from models.reduce_samples import distinct
from models.tables import few_rows_table
from models.types import History

ITEMS_AT_ONCE = 1024
"""Items whose systems are in memory at once."""
DOUBLINGS = 64
"""Times that λ is raised before a system counts as hopeless."""


@dataclass(frozen=True)
class Coordinates:
    """Coordinates ``first`` to ``first + size`` of ``factors``, and the rows of ppᵀ they need.

    Packed: the lower triangle of the block, then each of its coordinates with those outside;
    a block of all coordinates is a packed triangle.
    """

    factors: int
    size: int
    first: int = 0

    @property
    def num_products(self) -> int:
        """P, how many numbers the rows take."""
        return self.size * (self.size + 1) // 2 + self.size * (self.factors - self.size)

    @property
    def inside(self) -> slice:
        """The block's coordinates."""
        return slice(self.first, self.first + self.size)

    @cached_property
    def _pairs(self) -> Tensor:
        """Both coordinates of each product (2, P)."""
        # By numpy, so that they do not depend on where tensors are made by default.
        first, second = np.tril_indices(self.size)
        within = np.arange(self.first, self.first + self.size)
        outside = np.setdiff1d(np.arange(self.factors), within)
        crossed = np.repeat(within, len(outside)), np.tile(outside, self.size)
        pairs = np.concatenate((np.stack((first, second)) + self.first, np.stack(crossed)), axis=1)
        return torch.from_numpy(pairs)

    @cached_property
    def _places(self) -> Tensor:
        """Where each entry of the rows (B, D) lies among the products."""
        places_DD = np.zeros((self.factors, self.factors), dtype=np.int64)
        first_P, second_P = self._pairs.numpy()
        places_DD[first_P, second_P] = places_DD[second_P, first_P] = np.arange(len(first_P))
        return torch.from_numpy(places_DD[self.inside])

    def packed(self, users_UD: Tensor) -> Tensor:
        """The block's rows of ppᵀ of each user (U, P)."""
        first_P, second_P = self._pairs.to(users_UD.device)
        return users_UD[:, first_P] * users_UD[:, second_P]

    def unpacked(self, packed_XP: Tensor) -> Tensor:
        """The same as rows (…, B, D)."""
        return packed_XP[..., self._places.to(packed_XP.device)]


def sum_by_item(values_UX: Tensor, history: History, num_items: int) -> Tensor:
    """For each item the sum (I, X) over its users; sparse where few items have any."""
    rows_R, index_S = distinct(history.items_S, num_items)
    index_2S = torch.from_numpy(np.stack((index_S, history.users))).to(values_UX.device)
    ones_S = values_UX.new_ones(len(index_S))
    # As a product, since a row for every item of every user would be X times the histories.
    shape = (len(rows_R), len(values_UX))
    once_RU = torch.sparse_coo_tensor(
        index_2S, ones_S, shape, device=ones_S.device, check_invariants=False
    )
    rows = torch.from_numpy(rows_R).to(values_UX.device)
    return few_rows_table(rows, once_RU @ values_UX, num_items)


@dataclass(frozen=True)
class Totals:
    """Sums over users for a block of coordinates, of any scale that is the same for all."""

    gram_P: Tensor
    """G, the block's rows."""
    items_IX: Tensor
    """For each item tᵢ (B), followed by Sᵢ (P) unless α is 0, which makes it superfluous."""
    users: Tensor
    """Number of users ()."""


def solve_items(items_ID: Tensor, sums: Totals, block: Coordinates, cost: ImplicitCost) -> Tensor:
    """Item vectors (I, D) with the block's coordinates at their minimum, in float64.

    ``cost.reg`` counts once a user: λ is ``cost.reg`` times the number of users.

    Sums of rounded numbers may leave a system indefinite where λ is small; there λ is raised.

    Raises:
        ValueError: for sums that are not finite.

    """
    moved_ID = items_ID.double().clone()
    for first in range(0, len(moved_ID), ITEMS_AT_ONCE):
        rows = slice(first, first + ITEMS_AT_ONCE)
        part = Totals(sums.gram_P.double(), sums.items_IX[rows].double(), sums.users.double())
        moved_ID[rows, block.inside] = _solved(moved_ID[rows], part, block, cost)
    return moved_ID


def _solved(items_ID: Tensor, sums: Totals, block: Coordinates, cost: ImplicitCost) -> Tensor:
    rows_IBD = block.unpacked(sums.gram_P)[None]
    if cost.alpha:  # else one system for all items
        rows_IBD = rows_IBD + cost.alpha * block.unpacked(sums.items_IX[:, block.size :])
    outside_ID = items_ID.clone()
    outside_ID[:, block.inside] = 0
    right_IB = (1 + cost.alpha) * sums.items_IX[:, : block.size]
    right_IB = right_IB - (rows_IBD @ outside_ID[:, :, None])[:, :, 0]
    identity_BB = torch.eye(block.size, dtype=items_ID.dtype, device=items_ID.device)
    shift = cost.reg * max(float(sums.users), 1.0)  # no users: as one whose sums are zero
    factor_IBB = _factor(rows_IBD[:, :, block.inside] + shift * identity_BB, shift * identity_BB)
    return torch.cholesky_solve(right_IB[:, :, None], factor_IBB)[:, :, 0]


def _factor(system_IBB: Tensor, shift_BB: Tensor) -> Tensor:
    """Cholesky factors; of the system and once, three times, seven times … the shift if need be."""
    for _ in range(DOUBLINGS):
        factor_IBB, failed_I = torch.linalg.cholesky_ex(system_IBB)
        if not failed_I.any():
            return torch.as_tensor(factor_IBB)
        system_IBB = system_IBB + (failed_I > 0)[:, None, None] * shift_BB
        shift_BB = 2 * shift_BB
    raise ValueError("sums of the users' vectors are not finite, or far from those of any vectors")
