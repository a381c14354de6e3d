"""Parts of a truncated singular value decomposition: projections, a basis, a filter.

X̃ = D_u^-a X D_i^-b is the matrix of 0 and 1 of users and items, scaled by powers of the numbers of
items of each user and of each item's share of the users. All of it is computed in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from models.types import History

SHIFT = 1e-3
"""How much of the basis before is mixed into a step, in norms of the step. It leaves the fixed
points where they are, and says where directions go of which the users so far have nothing."""

Filter = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Scaling:
    """Exponents of the normalisation."""

    user: float
    """Power a of 1 / a user's number of items."""
    item: float
    """Power b of 1 / an item's share of the users."""


@dataclass(frozen=True)
class Projected:
    """A block of users in a basis V, in float64."""

    rows_S: Tensor
    """Item of each entry of the users' histories."""
    users_S: Tensor
    """Its user's place in the block."""
    factors_U: Tensor
    """n^-a; 1 for a user without items."""
    users_UD: Tensor
    """x̃ᵀV of each user; zero for a user without items."""
    outside_U: Tensor
    """Share of the squared length of x̃ outside the span of V; zero for a user without items."""


def project(items_ID: Tensor, shares_I: Tensor, history: History, scaling: Scaling) -> Projected:
    """Users' normalised histories in the basis ``items`` of orthonormal columns."""
    rows_S, users_S, lengths_U = (
        torch.from_numpy(index).to(items_ID.device)
        for index in (history.items_S, history.users, history.lengths_U)
    )
    factors_U = lengths_U.clamp(min=1).double() ** -scaling.user
    entries_S = factors_U[users_S] * shares_I[rows_S].double() ** -scaling.item
    empty_UD = items_ID.new_zeros(len(lengths_U), items_ID.shape[1], dtype=torch.float64)
    users_UD = empty_UD.index_add(0, users_S, entries_S[:, None] * items_ID[rows_S].double())
    squares_U = empty_UD[:, 0].index_add(0, users_S, entries_S**2)
    outside_U = 1 - (users_UD**2).sum(1) / squares_U.where(
        lengths_U > 0, torch.ones_like(squares_U)
    )
    outside_U = outside_U.where(lengths_U > 0, torch.zeros_like(outside_U))
    return Projected(rows_S, users_S, factors_U, users_UD, outside_U)


def next_basis(step_ID: Tensor, before_ID: Tensor) -> Tensor:
    """The orthonormal columns nearest to ``step`` + shift · ``before`` (I, D), in float64.

    The factor U of the polar decomposition UH spans what QR's Q does, has no signs to choose, and
    keeps the coordinates where they were: at a fixed point of the span it is ``before`` itself.
    Fewer items than columns give orthonormal rows.
    """
    before_ID = before_ID.double()
    shifted_ID = step_ID + SHIFT * step_ID.norm() * before_ID
    if not shifted_ID.any():
        return before_ID
    return orthonormal(shifted_ID)


def orthonormal(table_ID: Tensor) -> Tensor:
    """The orthonormal columns nearest to a table (I, D), in float64."""
    left_IK, _, right_KD = torch.linalg.svd(table_ID.double(), full_matrices=False)
    nearest_ID: Tensor = left_IK @ right_KD
    return nearest_ID


def rayleigh(step_ID: Tensor, basis_ID: Tensor) -> Tensor:
    """Vᵀ X̃ᵀX̃ V (D, D), symmetric, in float64; ``step`` stands for X̃ᵀX̃ V."""
    quotient_DD = basis_ID.T @ step_ID
    return (quotient_DD + quotient_DD.T) / 2


def singular_values(rayleigh_DD: Tensor) -> Tensor:
    """Ritz values (D,) of X̃ in the basis, falling; a negative square counts as zero."""
    squares_D: Tensor = torch.linalg.eigvalsh(rayleigh_DD.double())
    return squares_D.flip(0).clamp(min=0).sqrt()


def filtered(users_UD: Tensor, rayleigh_DD: Tensor, weight: Filter) -> Tensor:
    """Users p f(σ) (U, D) in float64, where f acts on the singular values in the basis of V.

    A function of the matrix: neither the signs nor, among equal values, the choice of its
    eigenvectors has a part in it.
    """
    squares_D, axes_DD = torch.linalg.eigh(rayleigh_DD.double())
    weights_D = weight(squares_D.clamp(min=0).sqrt())
    weighted_UD: Tensor = ((users_UD.double() @ axes_DD) * weights_D) @ axes_DD.T
    return weighted_UD
