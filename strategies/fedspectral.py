"""Federated truncated SVD of the normalised user-item matrix, by subspace iteration.

The server sends V, orthonormal columns with a row an item. A user uploads how far its rows of
X̃ᵀ(X̃V) have moved since it last took part, and its items once; the server keeps the sum over all
users, in the manner of SAG (Schmidt et al., arXiv 1309.2388), and makes it orthonormal. Its fixed
point is the central SVD also where few users take part in a round: ``docs/fedspectral.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from models.mf import ITEM, USER, MatrixFactorisation
from models.spectral import Scaling, filtered, next_basis, orthonormal, project, rayleigh
from models.tables import few_rows_table
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
from strategies.from_history import Remembering

SHARE, RAYLEIGH = "item_share", "rayleigh"
"""Shared beside V: share of the users seen so far who have an item (I,), and VᵀX̃ᵀX̃V (D, D)."""
COUNTED = "counted"
"""Private: 1 once the user's items were uploaded ()."""
MOVED, NEW_ITEMS, NEW_USERS = "moved_rows", "new_items", "new_users"
"""Summed over users: rows n^-a (p - p before) (I, D); items (I,) and number () of users that
take part for the first time."""
ROWS, COUNTS, SEEN = "rows", "item_counts", "users_seen"
"""The server's totals of these, in float64."""
TOTALS = {MOVED: ROWS, NEW_ITEMS: COUNTS, NEW_USERS: SEEN}
UNKNOWN_SHARE = 0.1
"""Of every item before anything is known. What the first users upload is on this scale, until they
take part again."""


@dataclass(frozen=True)
class FedSpectralConfig(StrategyConfig):
    """Settings of fedspectral."""

    num_negatives: int = 1
    """Drawn, but not used."""
    user_exponent: float = 0.5
    """Power a of 1 / a user's number of items in the normalised matrix."""
    item_exponent: float = 0.25
    """Power b of 1 / an item's number of users in the normalised matrix."""
    score_exponent: float = 0.25
    """Power of an item's share of the users that its score is multiplied by."""
    spectral_filter: Literal["none", "ridge", "power"] = "none"
    """Weight of a direction of singular value σ: 1, σ²/(σ² + ridge) or σ^power."""
    ridge: float = 0.1
    power: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._not_negative("user_exponent", "item_exponent", "score_exponent", "power")
        self._positive("ridge")
        self._one_of("spectral_filter", ("none", "ridge", "power"))


class FedSpectral(Remembering):
    """Movements of rows of X̃ᵀX̃V up, their total made orthonormal by the server."""

    Config: ClassVar[type[StrategyConfig]] = FedSpectralConfig
    title: ClassVar[str] = "Federated truncated SVD (subspace iteration with remembered terms)"
    about: ClassVar[str] = "Truncated SVD of the normalised matrix; exact at partial participation"
    config: FedSpectralConfig
    model: MatrixFactorisation

    def check(self) -> None:
        """A user is its projection, and a score a dot product."""
        if not isinstance(self.model, MatrixFactorisation):
            raise ValueError("fedspectral needs model=mf, whose items are the basis")

    @property
    def scaling(self) -> Scaling:
        """Of the matrix."""
        return Scaling(self.config.user_exponent, self.config.item_exponent)

    # ---- initial state -------------------------------------------------------------------
    def init_shared(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """A random basis, or that of ``initial_items``; all items alike, no singular values."""
        basis_ID = orthonormal(super().init_shared(num_items, rng)[ITEM]).float()
        factors = basis_ID.shape[1]
        return {
            ITEM: basis_ID,
            SHARE: torch.full((num_items,), UNKNOWN_SHARE),
            RAYLEIGH: torch.zeros(factors, factors),
        }

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Nothing uploaded yet."""
        return {USER: torch.zeros(self.model.factors), COUNTED: torch.zeros(())}

    def item_vectors(self, shared: Tensors) -> Tensors:
        """The basis times the power of the items' shares that scores are multiplied by."""
        powers_I = shared[SHARE] ** self.config.score_exponent
        return {ITEM: shared[ITEM] * powers_I[:, None]}

    # ---- client half ---------------------------------------------------------------------
    def cohort_update(
        self,
        shared: Tensors,
        private_block: Tensors,
        epochs_U: Sequence[Sequence[Samples]],
        rngs: Sequence[np.random.Generator],
    ) -> CohortResult:
        """Rows of users' items by how far their projections moved, and items of new users."""
        found = project(shared[ITEM], shared[SHARE], positive_history(epochs_U), self.scaling)
        # As stored, so that movements add up to what is remembered.
        users_UD, before_UD = found.users_UD.to(private_block[USER]), private_block[USER]
        moved_UD = found.factors_U[:, None] * (users_UD.double() - before_UD.double())
        new_U, num_items = 1 - private_block[COUNTED], len(shared[ITEM])
        values = {MOVED: moved_UD.to(shared[ITEM]), NEW_ITEMS: new_U.to(shared[SHARE])}
        tables = {
            n: few_rows_table(found.rows_S, t[found.users_S], num_items) for n, t in values.items()
        }
        tensors = {**tables, NEW_USERS: new_U.sum().to(shared[SHARE])}
        own = {USER: users_UD, COUNTED: torch.ones_like(new_U)}
        metrics = block_metrics(float(found.outside_U.sum()), epochs_U)
        return CohortResult(Update(tensors, float(len(epochs_U))), own, metrics)

    # ---- scoring -------------------------------------------------------------------------
    def scores_all(self, shared: Tensors, private_block: Tensors, history: History) -> Tensor:
        """Scores (U, I) from histories, of users trained or not; popularity without a history."""
        with torch.no_grad():
            scores_UI = self._users(shared, history) @ shared[ITEM].T
            return self._with_popularity(scores_UI, shared[SHARE][None], history)

    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray, history: History
    ) -> Tensor:
        """Scores (U, C) of each user's own candidates."""
        with torch.no_grad():
            users = {USER: self._users(shared, history)}
            scores_UC = self.model.score_candidates(shared, users, items_UC)
            shares_UC = shared[SHARE][torch.from_numpy(items_UC).to(scores_UC.device)]
            return self._with_popularity(scores_UC, shares_UC, history)

    def _users(self, shared: Tensors, history: History) -> Tensor:
        users_UD = project(shared[ITEM], shared[SHARE], history, self.scaling).users_UD
        if self.config.spectral_filter != "none":
            users_UD = filtered(users_UD, shared[RAYLEIGH], self._weights)
        return users_UD.to(shared[ITEM])

    def _weights(self, singular_D: Tensor) -> Tensor:
        cfg = self.config
        if cfg.spectral_filter == "ridge":
            return singular_D**2 / (singular_D**2 + cfg.ridge)
        return singular_D**cfg.power

    def _with_popularity(self, scores_UC: Tensor, shares_UC: Tensor, history: History) -> Tensor:
        empty_U1 = torch.from_numpy(history.lengths_U == 0).to(scores_UC.device)[:, None]
        return torch.where(empty_U1, shares_UC, scores_UC * shares_UC**self.config.score_exponent)

    # ---- server half ---------------------------------------------------------------------
    def summed_template(self, shared: Tensors) -> Tensors:
        """Movements of rows, and the items and number of new users."""
        return {MOVED: shared[ITEM], NEW_ITEMS: shared[SHARE], NEW_USERS: shared[SHARE].sum()}

    def init_server_state(self, shared: Tensors) -> Tensors:
        """Totals over no users."""
        template = self.summed_template(shared)
        return {TOTALS[n]: torch.zeros_like(t, dtype=torch.float64) for n, t in template.items()}

    def server_update(
        self, shared: Tensors, summed: Update, server_state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Totals with the round's movements; X̃ᵀX̃V from them, made orthonormal."""
        sums, scale = summed.tensors, self.config.item_exponent
        rows_ID, counts_I, seen = (
            server_state[total] + sums[part].double() for part, total in TOTALS.items()
        )
        # An item that no user seen so far has counts as one of one user.
        shares_I = counts_I.clamp(min=1) / seen.clamp(min=1)
        step_ID = shares_I[:, None] ** -scale * rows_ID
        basis_ID = next_basis(step_ID, shared[ITEM])
        # With numbers of users in the place of shares, as the matrix is usually written.
        quotient_DD = rayleigh(step_ID, basis_ID) * seen.clamp(min=1) ** (-2 * scale)
        new = {ITEM: basis_ID, SHARE: shares_I, RAYLEIGH: quotient_DD}
        moved = {n: new[n].to(t) for n, t in shared.items()}
        return moved, {ROWS: rows_ID, COUNTS: counts_I, SEEN: seen}
