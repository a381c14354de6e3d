"""Matrix factorisation: the score of an item is its dot product with the user's vector.

Item embeddings are shared, the user embedding is private. As the score is bilinear, the
point where every embedding is zero is a saddle: both gradients vanish there, and from a
draw with a small standard deviation s the gradients are of order s, so plain gradient steps
need of the order of log(1/s) many to leave it. ``init_std`` is therefore a setting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from models.base import DotProduct, ScoringModel
from models.local_sgd import Batches, LocallyTrained, SGDRates
from models.losses import Loss
from models.mf_block import sam_block
from models.mf_sgd import lockstep_sgd
from models.sam import BlockGradients, Radii
from models.types import IntArray, Samples, Tensors

ITEM, USER = "item_emb", "user_emb"


@dataclass(frozen=True)
class MatrixFactorisation(ScoringModel):
    """Shared ``item_emb`` (I, D), private ``user_emb`` (D,); logit = item_emb · user_emb.

    Raises:
        ValueError: when ``factors`` is below 1 or ``init_std`` is not positive and finite.

    """

    factors: int = 32
    """Embedding width D."""
    init_std: float = 0.1
    """Standard deviation of the normal draw of every embedding entry."""

    item_tables: ClassVar[frozenset[str]] = frozenset({ITEM})
    dot_product: ClassVar[DotProduct | None] = DotProduct(ITEM, USER)
    block_users: ClassVar[int] = 128  # a user takes microseconds: calls would dominate

    def __post_init__(self) -> None:
        if self.factors < 1:
            raise ValueError(f"factors must be at least 1, got {self.factors}")
        if not 0 < self.init_std < math.inf:
            # Zero is the saddle itself: no gradient method would ever leave it.
            raise ValueError(f"init_std must be positive and finite, got {self.init_std}")

    def init_shared(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Draw the item embeddings (I, D)."""
        return {ITEM: self._normal(rng, (num_items, self.factors))}

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Draw one user's embedding (D,)."""
        return {USER: self._normal(rng, (self.factors,))}

    def _normal(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
        draw = self.init_std * rng.standard_normal(shape, dtype=np.float32)
        return torch.from_numpy(draw.astype(np.float32, copy=False))

    def logits(self, shared: Tensors, private: Tensors, items_S: Tensor) -> Tensor:
        """Dot products of one user with the items (S,)."""
        return shared[ITEM][items_S] @ private[USER]

    def scores(self, shared: Tensors, private_block: Tensors, items_R: IntArray | None) -> Tensor:
        """Dot products of a block of users with the given items (U, R), or with all (U, I)."""
        items_RD = shared[ITEM] if items_R is None else _rows(shared[ITEM], items_R)
        return private_block[USER] @ items_RD.T

    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray
    ) -> Tensor:
        """Dot products of each user with candidates of its own (U, C)."""
        items_UCD = _rows(shared[ITEM], items_UC)
        return torch.einsum("ucd,ud->uc", items_UCD, private_block[USER])

    def block_gradients(
        self,
        shared: Tensors,
        private_block: Tensors,
        samples_U: Sequence[Samples],
        loss: Loss,
        radii: Radii,
    ) -> BlockGradients:
        """SAM gradients of a block at once; exact, see ``models.mf_block``.

        The gradient of the items is sparse (``models.tables``) where the block touches a
        small part of the catalogue.
        """
        shared_ID, private_UD, losses_U3 = sam_block(
            shared[ITEM], private_block[USER], samples_U, loss, radii
        )
        return BlockGradients({ITEM: shared_ID}, {USER: private_UD}, losses_U3)

    def local_sgd(
        self,
        shared: Tensors,
        private_block: Tensors,
        batches_U: Sequence[Batches],
        weights_U: Sequence[float],
        rates: SGDRates,
        *,
        by_length: bool = False,
    ) -> LocallyTrained:
        """All users of a block in lock-step; exact, see ``models.mf_sgd``."""
        trained = lockstep_sgd(shared[ITEM], private_block[USER], batches_U, rates)
        if by_length:
            moved_ID, lengths_I = trained.weighed_by_length()
            lengths = {ITEM: lengths_I}
            return LocallyTrained({ITEM: moved_ID}, {USER: trained.users_UD}, trained.loss, lengths)
        moved_ID = trained.weighed(weights_U)
        return LocallyTrained({ITEM: moved_ID}, {USER: trained.users_UD}, trained.loss)


def _rows(items_ID: Tensor, index: IntArray) -> Tensor:
    return items_ID[torch.from_numpy(index).to(items_ID.device)]
