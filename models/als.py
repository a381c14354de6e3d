"""Implicit alternating least squares: users in closed form, and what they say of the items.

Hu, Koren & Volinsky (ICDM 2008): with preference r, 1 for an item of the user and else 0, and
confidence c = 1 + α r, a user's cost is Σᵢ cᵢ (rᵢ - p·qᵢ)² + λ ‖p‖² over the whole catalogue.
Sums over the catalogue go through its Gram matrix, so the work grows with a user's own items.
Computed in float64 whatever the embeddings are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.types import History

SOLVED_AT_ONCE = 1024
"""Users whose systems are in memory at once in :func:`solve_many_users`."""


@dataclass(frozen=True)
class ImplicitCost:
    """Weights of a user's cost."""

    alpha: float
    """How much more an item of the user counts than another, α."""
    reg: float
    """Weight λ of the user's own squared norm."""


@dataclass(frozen=True)
class SolvedUsers:
    """Users at the minimum of their cost, in float64."""

    users_UD: Tensor
    residuals_ID: Tensor
    """Sum over users of f = cᵢ (rᵢ - p·qᵢ) p: minus half the gradient of their costs."""
    costs_U: Tensor


def _identity(items_ID: Tensor) -> Tensor:
    return torch.eye(items_ID.shape[1], dtype=items_ID.dtype, device=items_ID.device)


def solve_users(items_ID: Tensor, history: History, cost: ImplicitCost) -> Tensor:
    """Vectors p = (QᵀCQ + λI)⁻¹ QᵀCr of users (U, D), in float64; zero for a user without items.

    Raises:
        ValueError: when the system has no unique solution in float64.

    """
    items_ID = items_ID.double()
    rows_SD = items_ID[torch.from_numpy(history.items_S).to(items_ID.device)]
    own_U = torch.split(rows_SD, history.lengths_U.tolist())
    gram_DD = items_ID.T @ items_ID + cost.reg * _identity(items_ID)
    system_UDD = torch.stack([gram_DD + cost.alpha * (own.T @ own) for own in own_U])
    right_UD = torch.stack([(1 + cost.alpha) * own.sum(0) for own in own_U])
    try:
        factor_UDD = torch.linalg.cholesky(system_UDD)
    except RuntimeError as error:  # torch.linalg.LinAlgError, whose name has no type
        raise ValueError(
            f"users have no unique vector with alpha={cost.alpha:g} and user_reg={cost.reg:g}: "
            "lower the first or raise the second"
        ) from error
    return torch.cholesky_solve(right_UD[:, :, None], factor_UDD)[:, :, 0]


def solve_many_users(items_ID: Tensor, history: History, cost: ImplicitCost) -> Tensor:
    """:func:`solve_users`, some at once, for more users than systems (D, D) fit in memory."""
    return torch.cat([solve_users(items_ID, part, cost) for part in _parts(history)])


def _parts(history: History) -> list[History]:
    """The users in parts; one part without users where there are none."""
    ends_U = history.lengths_U.cumsum()
    parts = []
    for first in range(0, max(1, len(ends_U)), SOLVED_AT_ONCE):
        lengths_U = history.lengths_U[first : first + SOLVED_AT_ONCE]
        start = int(ends_U[first - 1]) if first else 0
        items_S = history.items_S[start : start + int(lengths_U.sum())]
        parts.append(History(items_S, lengths_U))
    return parts


def solved_users(items_ID: Tensor, history: History, cost: ImplicitCost) -> SolvedUsers:
    """Vectors of a block of users, and the residuals that move the items."""
    users_UD = solve_users(items_ID, history, cost)
    items_ID = items_ID.double()
    users_S, items_S = (
        torch.from_numpy(index).to(items_ID.device) for index in (history.users, history.items_S)
    )
    scores_S = (items_ID[items_S] * users_UD[users_S]).sum(1)
    # As if no item were the user's, and then what its own items have more.
    residuals_ID = -items_ID @ (users_UD.T @ users_UD)
    more_S = (1 + cost.alpha) * (1 - scores_S) + scores_S
    residuals_ID.index_add_(0, items_S, more_S[:, None] * users_UD[users_S])
    gram_DD = items_ID.T @ items_ID
    costs_U = ((users_UD @ gram_DD) * users_UD).sum(1) + cost.reg * (users_UD**2).sum(1)
    more_S = (1 + cost.alpha) * (1 - scores_S) ** 2 - scores_S**2
    return SolvedUsers(users_UD, residuals_ID, costs_U.index_add(0, users_S, more_S))
