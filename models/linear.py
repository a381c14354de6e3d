"""Linear scoring of item embeddings: a user is a score function, not a vector in item space.

Source: PFedRec (arXiv 2301.08143), whose users have a linear layer with a bias over the item
embeddings. As a torch ``Linear`` layer, and unlike a user vector drawn around zero, it starts
at ±1/√D in each entry, so the items have a gradient from the first step on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from models.base import ScoringModel
from models.types import IntArray, Tensors

ITEM, WEIGHT, BIAS = "item_emb", "score_weight", "score_bias"


@dataclass(frozen=True)
class LinearScoring(ScoringModel):
    """Shared ``item_emb`` (I, D), private ``score_weight`` (D,) and ``score_bias`` ().

    logit = item_emb · score_weight + score_bias.

    Raises:
        ValueError: when ``factors`` is below 1 or ``init_std`` is not positive and finite.

    """

    factors: int = 32
    """Embedding width D."""
    init_std: float = 1.0
    """Standard deviation of the normal draw of the item embeddings; PFedRec's code has 1."""

    item_tables: ClassVar[frozenset[str]] = frozenset({ITEM})
    block_users: ClassVar[int] = 64  # microseconds a user, but strategies keep a table for each

    def __post_init__(self) -> None:
        if self.factors < 1:
            raise ValueError(f"factors must be at least 1, got {self.factors}")
        if not 0 < self.init_std < math.inf:
            raise ValueError(f"init_std must be positive and finite, got {self.init_std}")

    def init_shared(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Draw the item embeddings (I, D)."""
        return {ITEM: self.draw_items(num_items, rng)}

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Draw one user's weight (D,) and bias (), both uniform in ±1/√D."""
        bound = 1 / math.sqrt(self.factors)
        draw = rng.uniform(-bound, bound, self.factors + 1).astype(np.float32)
        return {WEIGHT: torch.from_numpy(draw[:-1]), BIAS: torch.tensor(draw[-1])}

    def draw_items(self, num_items: int, rng: np.random.Generator) -> Tensor:
        """Draw a table of item embeddings (I, D)."""
        draw = rng.standard_normal((num_items, self.factors), dtype=np.float32)
        return torch.from_numpy(np.float32(self.init_std) * draw)

    def logits(self, shared: Tensors, private: Tensors, items_S: Tensor) -> Tensor:
        """Score of the items (S,) for one user."""
        return shared[ITEM][items_S] @ private[WEIGHT] + private[BIAS]

    def scores(self, shared: Tensors, private_block: Tensors, items_R: IntArray | None) -> Tensor:
        """Score of the given items (U, R), or of all (U, I), for a block of users."""
        items_RD = shared[ITEM] if items_R is None else _rows(shared[ITEM], items_R)
        return private_block[WEIGHT] @ items_RD.T + private_block[BIAS][:, None]

    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray
    ) -> Tensor:
        """Score of each user's own candidates (U, C)."""
        return score_rows(_rows(shared[ITEM], items_UC), private_block)


def score_rows(rows_URD: Tensor, private_block: Tensors) -> Tensor:
    """Score of rows that each user has for itself (U, R)."""
    weights_UD, biases_U = private_block[WEIGHT], private_block[BIAS]
    return torch.einsum("urd,ud->ur", rows_URD, weights_UD) + biases_U[:, None]


def own_rows(tables_UID: Tensor, items_UC: IntArray) -> Tensor:
    """Rows of each user's own table for its candidates (U, C, D)."""
    users_U1 = torch.arange(len(tables_UID), device=tables_UID.device)[:, None]
    return tables_UID[users_U1, torch.from_numpy(items_UC).to(tables_UID.device)]


def _rows(items_ID: Tensor, index: IntArray) -> Tensor:
    return items_ID[torch.from_numpy(index).to(items_ID.device)]
