"""Users' vectors from their items alone, for models that score by a dot product with the items.

The ridge regression of a user's items (1 for its own, 0 for any other) on the item vectors as they
are scored with: the user's step of implicit ALS (Hu, Koren & Volinsky, ICDM 2008) with equal
confidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from models.als import ImplicitCost, solve_users
from models.types import History, Tensors

if TYPE_CHECKING:
    from models.base import ScoringModel

SOLVED_AT_ONCE = 1024
"""Users whose D × D systems are in memory at once."""


@dataclass(frozen=True)
class SolvedStart:
    """How users who were never trained get a vector from their history."""

    ridge: float
    """λ over the mean eigenvalue of QᵀQ, so that it does not depend on the scale of the items."""
    gain: float
    """Score that the regression aims at for the user's own items."""

    def vectors(self, model: ScoringModel, shared: Tensors, history: History) -> Tensors:
        """The user vector of the model's dot product, (U, D), under its name; zero for no items.

        Raises:
            ValueError: when the model has no dot product with a user's vector.

        """
        if model.dot_product is None:
            raise ValueError("the model has no dot product of a user's vector with the items")
        items_ID = model.dot_items(shared).double()
        scale = float(items_ID.square().sum()) / items_ID.shape[1]
        # Without any items' length there is nothing to solve for, and any λ gives zero.
        cost = ImplicitCost(0.0, self.ridge * scale or 1.0)
        parts = [solve_users(items_ID, part, cost) for part in _parts(history)]
        solved_UD: Tensor = self.gain * torch.cat(parts)
        return {model.dot_product.user: solved_UD}


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
