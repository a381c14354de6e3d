"""Matrix factorisation by the cosine: the score depends on directions alone, times a gain.

The length of an item's vector, which in plain matrix factorisation mostly follows its popularity,
has no part in the score. The gradient of a row is orthogonal to it, so rows only grow in length
under plain gradient steps, and the longer they are the slower they turn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor
from torch.nn import functional

from models.base import DotProduct, ScoringModel
from models.mf import ITEM, USER, MatrixFactorisation
from models.types import IntArray, Tensors

SHORTEST = 1e-8
"""Vectors shorter than this are not scaled to length one: zero has the score zero."""


@dataclass(frozen=True)
class CosineFactorisation(ScoringModel):
    """Shared ``item_emb`` (I, D), private ``user_emb`` (D,); logit = gain · cos(item, user).

    No kind of ``MatrixFactorisation``: what is derived from its dot product, as closed forms and
    block kernels are, does not hold here. Blocks go user by user by automatic differentiation.

    Raises:
        ValueError: as ``MatrixFactorisation``, or when ``gain`` is not positive and finite.

    """

    factors: int = 32
    """Embedding width D."""
    init_std: float = 0.1
    """Standard deviation of the normal draw of every embedding entry."""
    gain: float = 10.0
    """Logit of an item in the user's own direction, the inverse of a softmax's temperature."""

    item_tables: ClassVar[frozenset[str]] = frozenset({ITEM})
    dot_product: ClassVar[DotProduct | None] = DotProduct(ITEM, USER)

    def __post_init__(self) -> None:
        _ = self._plain
        if not 0 < self.gain < math.inf:
            raise ValueError(f"gain must be positive and finite, got {self.gain}")

    @property
    def _plain(self) -> MatrixFactorisation:
        return MatrixFactorisation(self.factors, self.init_std)

    def init_shared(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Draw the item embeddings (I, D)."""
        return self._plain.init_shared(num_items, rng)

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Draw one user's embedding (D,)."""
        return self._plain.init_private(num_items, rng)

    def dot_items(self, shared: Tensors) -> Tensor:
        """Item vectors (I, D) of length one."""
        return _directions(shared[ITEM])

    def logits(self, shared: Tensors, private: Tensors, items_S: Tensor) -> Tensor:
        """Scores of one user for the items (S,)."""
        return _directions(shared[ITEM][items_S]) @ self._user(private)[USER]

    def scores(self, shared: Tensors, private_block: Tensors, items_R: IntArray | None) -> Tensor:
        """Scores of a block of users for the given items (U, R), or for all (U, I)."""
        directed = {ITEM: _directions(shared[ITEM])}
        return self._plain.scores(directed, self._user(private_block), items_R)

    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray
    ) -> Tensor:
        """Scores of each user's own candidates (U, C)."""
        directed = {ITEM: _directions(shared[ITEM])}
        return self._plain.score_candidates(directed, self._user(private_block), items_UC)

    def _user(self, private: Tensors) -> Tensors:
        return {USER: self.gain * _directions(private[USER])}


def _directions(vectors_XD: Tensor) -> Tensor:
    return functional.normalize(vectors_XD, dim=-1, eps=SHORTEST)
