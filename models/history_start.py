"""Users' vectors from their items alone, for models that score by a dot product with the items.

The ridge regression of a user's items (1 for its own, 0 for any other) on the item vectors as they
are scored with: the user's step of implicit ALS (Hu, Koren & Volinsky, ICDM 2008) with equal
confidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.als import ImplicitCost, solve_many_users
from models.types import History, Tensors

if TYPE_CHECKING:
    from models.base import ScoringModel


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
        return {model.dot_product.user: self.gain * solve_many_users(items_ID, history, cost)}
