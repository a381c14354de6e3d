"""FCF (Ammad-ud-din et al., arXiv 1901.09888): federated implicit alternating least squares.

A user solves its own vector in closed form from the item embeddings and its items, and uploads
fᵢ = cᵢ (rᵢ - p·qᵢ) p for every item of the catalogue; the server steps Adam along the gradient
-2 Σᵤ fᵤᵢ + 2λ qᵢ. ``docs/fcf.md`` says how this is scaled when part of the users take part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from models import optim
from models.als import ImplicitCost, SolvedUsers, solve_users, solved_users
from models.mf import ITEM, USER, MatrixFactorisation
from models.types import (
    CohortResult,
    History,
    IntArray,
    Samples,
    Tensors,
    Update,
    positive_history,
)
from strategies.base import StrategyConfig, block_metrics
from strategies.from_history import BlockOfOne


@dataclass(frozen=True)
class FCFConfig(StrategyConfig):
    """Settings of FCF."""

    num_negatives: int = 1
    """Drawn, but not used: the cost is over the whole catalogue."""
    server_lr: float = 0.05
    alpha: float = 1.0
    """How much more an item of the user counts than another: confidence 1 + α."""
    user_reg: float = 1.0
    """Weight of a user's squared norm in its cost."""
    item_reg: float = 0.001
    """Weight of an item's squared norm, in units of one user's cost: λ of the paper over the
    number of users."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._not_negative("alpha", "item_reg")
        # Without it a user with fewer items than factors has no unique vector.
        self._positive("user_reg")


class FCF(BlockOfOne):
    """Users in closed form, a residual for every item up, Adam on the server."""

    Config: ClassVar[type[StrategyConfig]] = FCFConfig
    title: ClassVar[str] = "FCF (arXiv 1901.09888)"
    about: ClassVar[str] = (
        "Implicit least squares: users in closed form, items by the server's Adam"
    )
    dense_updates: ClassVar[bool] = True
    plain_updates = False
    """Not: residuals, of which the server makes the gradient."""
    config: FCFConfig
    model: MatrixFactorisation

    def check(self) -> None:
        """The closed form is that of dot products."""
        if not isinstance(self.model, MatrixFactorisation):
            raise ValueError("fcf needs model=mf, whose users have a closed form")

    @property
    def cost(self) -> ImplicitCost:
        """What a user minimises."""
        return ImplicitCost(self.config.alpha, self.config.user_reg)

    # ---- client half ---------------------------------------------------------------------
    def cohort_update(
        self,
        shared: Tensors,
        private_block: Tensors,
        epochs_U: Sequence[Sequence[Samples]],
        rngs: Sequence[np.random.Generator],
    ) -> CohortResult:
        """Vectors from the positives; nothing depends on the ones before."""
        solved = solved_users(shared[ITEM], positive_history(epochs_U), self.cost)
        update = Update(_uploaded(solved, shared), float(len(epochs_U)))
        own = {USER: solved.users_UD.to(private_block[USER])}
        return CohortResult(update, own, block_metrics(float(solved.costs_U.sum()), epochs_U))

    # ---- scoring -------------------------------------------------------------------------
    def scores_all(self, shared: Tensors, private_block: Tensors, history: History) -> torch.Tensor:
        """Scores (U, I) with vectors solved for these items, of users trained or not."""
        return self.model.scores_all(shared, self._solved(shared, history))

    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray, history: History
    ) -> torch.Tensor:
        """Scores (U, C) of each user's own candidates."""
        return self.model.score_candidates(shared, self._solved(shared, history), items_UC)

    def _solved(self, shared: Tensors, history: History) -> Tensors:
        with torch.no_grad():
            return {USER: solve_users(shared[ITEM], history, self.cost).to(shared[ITEM])}

    # ---- server half ---------------------------------------------------------------------
    def server_update(
        self, shared: Tensors, summed: Update, server_state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """A step along the gradient of the mean user's cost and the items' squared norms."""
        cfg, items_ID = self.config, shared[ITEM]
        mean_ID = summed.tensors[ITEM] / summed.weight
        gradient = {ITEM: -2 * mean_ID + 2 * cfg.item_reg * items_ID}
        return optim.step(cfg.server_optimiser, shared, gradient, server_state, cfg.server_lr)


def _uploaded(solved: SolvedUsers, shared: Tensors) -> Tensors:
    return {ITEM: solved.residuals_ID.to(shared[ITEM])}
