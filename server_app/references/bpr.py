"""Matrix factorisation by Bayesian personalised ranking (Rendle et al., UAI 2009).

The two implementations optimise the same loss in different ways: the library by SGD over one
triple at a time with an item bias, ours by minibatches of Adam without one. Their figures differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.rng import Role, derive_rng
from models.types import IntArray
from server_app.references.base import ImplicitOrOwn, Scorer, binary

if TYPE_CHECKING:
    from scipy.sparse import csr_array

INIT_STD = 0.01


@dataclass(frozen=True)
class BPRConfig:
    """Settings of :class:`BPR`."""

    factors: int = 16
    """D, at least 1."""
    learning_rate: float = 0.01
    l2: float = 0.01
    """Of the vectors in a triple; in ``own``, half of it times their squared norm."""
    epochs: int = 100
    """Passes over as many triples as there are training pairs, at least 1."""
    batch: int = 1024
    """Triples a step; the library takes one."""
    implementation: Literal["implicit", "own"] = "implicit"

    def __post_init__(self) -> None:
        for key in ("factors", "epochs", "batch"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
        if self.learning_rate <= 0 or self.l2 < 0:
            raise ValueError("learning_rate must be above 0 and l2 not negative")


class BPR(ImplicitOrOwn[BPRConfig]):
    """−ln σ(p_u·q_i − p_u·q_j) for training pairs (u, i) and items j that u has no row of."""

    name = "bpr"
    title = "BPR-MF (Rendle et al., UAI 2009)"
    Config = BPRConfig
    grid = tuple(
        BPRConfig(factors, learning_rate=lr, l2=l2)
        for factors, lr, l2 in product((16, 64), (0.01, 0.02, 0.05), (0.01, 0.05, 0.1))
    )

    def fit(self, train_UI: csr_array, seed: int) -> Scorer:
        """User and item vectors; scores are their products."""
        solve = {"implicit": _by_library, "own": descended}[self.config.implementation]
        users_UD, items_ID = solve(binary(train_UI), self.config, seed)
        return lambda users_U: users_UD[torch.from_numpy(users_U)] @ items_ID.T


def descended(once_UI: csr_array, config: BPRConfig, seed: int) -> tuple[Tensor, Tensor]:
    """Vectors (U, D) and (I, D) after minibatch Adam over fresh triples in every epoch."""
    rng = derive_rng(seed, Role.REFERENCE)
    tables = [
        torch.from_numpy(rng.normal(0, INIT_STD, (n, config.factors)).astype(np.float32))
        for n in once_UI.shape
    ]
    users_UD, items_ID = (table.requires_grad_() for table in tables)
    optimiser = torch.optim.Adam([users_UD, items_ID], lr=config.learning_rate)
    for _ in range(config.epochs):
        triples = torch.from_numpy(draw_triples(once_UI, rng))
        for part in torch.split(triples, config.batch):
            optimiser.zero_grad()
            rows = (users_UD[part[:, 0]], items_ID[part[:, 1]], items_ID[part[:, 2]])
            torch.autograd.backward(loss(*rows, config.l2))
            optimiser.step()
    return users_UD.detach(), items_ID.detach()


def loss(user_SD: Tensor, liked_SD: Tensor, other_SD: Tensor, l2: float) -> Tensor:
    """Mean over triples of the ranking loss and of the vectors' penalty (scalar)."""
    margin_S = (user_SD * (liked_SD - other_SD)).sum(1)
    penalty = 0.5 * l2 * sum(rows.square().sum(1).mean() for rows in (user_SD, liked_SD, other_SD))
    return functional.softplus(-margin_S).mean() + penalty


def draw_triples(once_UI: csr_array, rng: np.random.Generator) -> IntArray:
    """(S, 3) user, item of the user, item that is not the user's; every pair once, shuffled.

    Users who have every item have no triple.
    """
    num_items = once_UI.shape[1]
    lengths_U = np.diff(once_UI.indptr)
    users_S = np.repeat(np.arange(len(lengths_U)), lengths_U)
    keys = users_S * num_items + once_UI.indices  # ascending: rows and their indices are
    chosen = rng.permutation(np.flatnonzero(lengths_U[users_S] < num_items))
    others_S = rng.integers(num_items, size=len(chosen))
    while len(again := np.flatnonzero(_among(users_S[chosen] * num_items + others_S, keys))):
        others_S[again] = rng.integers(num_items, size=len(again))
    return np.stack([users_S[chosen], once_UI.indices[chosen], others_S], axis=1).astype(np.int64)


def _among(wanted: IntArray, keys: IntArray) -> np.ndarray:
    """Which of ``wanted`` occur in the ascending ``keys``."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.asarray(keys[places] == wanted)


def _by_library(once_UI: csr_array, config: BPRConfig, seed: int) -> tuple[Tensor, Tensor]:
    """The library's, with one thread: several update the same rows in no fixed order."""
    from implicit.cpu.bpr import BayesianPersonalizedRanking
    from scipy.sparse import csr_matrix

    model = BayesianPersonalizedRanking(
        factors=config.factors,
        learning_rate=config.learning_rate,
        regularization=config.l2,
        iterations=config.epochs,
        num_threads=1,
        random_state=int(derive_rng(seed, Role.REFERENCE).integers(2**31)),
    )
    model.fit(csr_matrix(once_UI), show_progress=False)
    return torch.from_numpy(model.user_factors), torch.from_numpy(model.item_factors)
