"""Implicit-feedback matrix factorisation by alternating least squares.

Hu, Koren & Volinsky, ICDM 2008. Both implementations minimise the same loss from the same
initial vectors by exact solves in float64, so they differ by rounding only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import torch

from models.als import ImplicitCost, solve_many_users
from models.rng import Role, derive_rng
from models.types import History
from server_app.references.base import ImplicitOrOwn, Scorer, binary

if TYPE_CHECKING:
    from scipy.sparse import csr_array

INIT_WIDTH = 0.01
"""Initial vectors are uniform in [0, 0.01), as in the library."""

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class IALSConfig:
    """Settings of :class:`IALS`."""

    factors: int = 16
    """D, at least 1."""
    l2: float = 0.01
    """λ, above 0: of every user's and item's vector, whatever its number of interactions."""
    alpha: float = 1.0
    """Weight of a positive; every other pair weighs 1. At least 1."""
    iterations: int = 15
    """Times that users and then items are solved for, at least 1."""
    implementation: Literal["implicit", "own"] = "implicit"

    def __post_init__(self) -> None:
        for key, least in (("factors", 1), ("alpha", 1), ("iterations", 1)):
            if getattr(self, key) < least:
                raise ValueError(f"{key} must be at least {least}, got {getattr(self, key)}")
        if self.l2 <= 0:
            raise ValueError(f"l2 must be above 0, got {self.l2}")


class IALS(ImplicitOrOwn[IALSConfig]):
    """Minimises Σ w_ui (y_ui − p_u·q_i)² + λ (Σ‖p_u‖² + Σ‖q_i‖²) over all pairs.

    y is 1 and w is alpha for a training pair; else 0 and 1.
    """

    name = "ials"
    title = "iALS (Hu et al., ICDM 2008)"
    Config = IALSConfig
    grid = tuple(
        IALSConfig(factors, l2, alpha)
        for factors, l2, alpha in product((8, 16, 32, 64), (0.01, 10.0), (1.0, 4.0, 16.0))
    )

    def fit(self, train_UI: csr_array, seed: int) -> Scorer:
        """User and item vectors; scores are their products."""
        once_UI = binary(train_UI)
        start = initial_vectors(once_UI.shape, self.config.factors, seed)
        solve = {"implicit": _by_library, "own": alternate}[self.config.implementation]
        users_UD, items_ID = (
            torch.from_numpy(rows) for rows in solve(once_UI, *start, self.config)
        )
        return lambda users_U: users_UD[torch.from_numpy(users_U)] @ items_ID.T


def initial_vectors(shape: tuple[int, int], factors: int, seed: int) -> tuple[Doubles, Doubles]:
    """User (U, D) and item (I, D) vectors before the first solve."""
    rng = derive_rng(seed, Role.REFERENCE)
    users, items = (rng.uniform(0.0, INIT_WIDTH, (rows, factors)) for rows in shape)
    return users, items


def alternate(
    once_UI: csr_array, users_UD: Doubles, items_ID: Doubles, config: IALSConfig
) -> tuple[Doubles, Doubles]:
    """Solve for all users, then for all items, ``iterations`` times."""
    once_IU = once_UI.T.tocsr()
    for _ in range(config.iterations):
        users_UD = solved(once_UI, items_ID, config)
        items_ID = solved(once_IU, users_UD, config)
    return users_UD, items_ID


def solved(once_UI: csr_array, items_ID: Doubles, config: IALSConfig) -> Doubles:
    """The best user vectors (U, D) for given item vectors, as federated users solve for theirs.

    There a positive weighs 1 + α and any other pair 1.
    """
    items, cost = torch.from_numpy(items_ID), ImplicitCost(config.alpha - 1, config.l2)
    return solve_many_users(items, _history(once_UI), cost).numpy()


def _history(once_UI: csr_array) -> History:
    return History(once_UI.indices.astype(np.int64), np.diff(once_UI.indptr).astype(np.int64))


def _by_library(
    once_UI: csr_array, users_UD: Doubles, items_ID: Doubles, config: IALSConfig
) -> tuple[Doubles, Doubles]:
    """The same by the library, from the same vectors; one BLAS thread, as the library asks for."""
    from implicit.cpu.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):
        model = AlternatingLeastSquares(
            factors=config.factors,
            regularization=config.l2,
            alpha=config.alpha,
            iterations=config.iterations,
            dtype=np.float64,
            use_cg=False,
        )
        model.user_factors, model.item_factors = users_UD.copy(), items_ID.copy()
        model.fit(csr_matrix(once_UI), show_progress=False)
    return model.user_factors, model.item_factors
