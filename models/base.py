"""The contract of a scoring model: shared and private parameters, scores, gradients.

A model holds no parameters. It is a small frozen description (widths, depths) with pure
functions over tensors, so the same object serves the server, a node and any user.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from models.local_sgd import Batches, LocallyTrained, SGDRates, rowwise_sgd
from models.losses import Loss
from models.sam import BlockGradients, Radii, loop_gradients
from models.types import IntArray, Samples, Tensors


@dataclass(frozen=True)
class DotProduct:
    """Names of the two sides of a dot product in a model's score."""

    items: str
    """Shared, (I, D)."""
    user: str
    """Private, (D,)."""


class ScoringModel(ABC):
    """Scores items for users from shared parameters and one user's private parameters."""

    item_tables: ClassVar[frozenset[str]]
    """Names of the shared tensors whose first dimension is the catalogue."""
    scores_from_history: ClassVar[bool] = False
    """Scores need a user's history, which few strategies give."""
    dot_product: ClassVar[DotProduct | None] = None
    """Where the score, or a term of it, is a dot product of a user's vector with the items'."""
    block_users: ClassVar[int] = 32
    """Users that are trained at once by default: enough to share what a block shares, few enough
    for a node's workers to have some blocks each."""

    @abstractmethod
    def init_shared(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Draw the initial shared parameters (float32) for ``num_items`` items."""

    @abstractmethod
    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Draw one user's initial private parameters (float32, no user dimension).

        ``num_items`` is for models whose private parameters have a row an item.
        """

    def dot_items(self, shared: Tensors) -> Tensor:
        """Item vectors (I, D) that the user's vector is multiplied with in :attr:`dot_product`."""
        assert self.dot_product is not None
        return shared[self.dot_product.items]

    @abstractmethod
    def logits(self, shared: Tensors, private: Tensors, items_S: Tensor) -> Tensor:
        """Score items for one user; differentiable. Returns logits (S,)."""

    @abstractmethod
    def scores(self, shared: Tensors, private_block: Tensors, items_R: IntArray | None) -> Tensor:
        """Score items for a block of users without gradients. Returns (U, R), or (U, I).

        ``private_block`` has a leading user dimension; ``items_R`` None means all items.
        """

    @abstractmethod
    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray
    ) -> Tensor:
        """Score each user's own candidates without gradients. Returns (U, C)."""

    def block_gradients(
        self,
        shared: Tensors,
        private_block: Tensors,
        samples_U: Sequence[Samples],
        loss: Loss,
        radii: Radii,
    ) -> BlockGradients:
        """SAM gradients of a ragged block of users; the default goes user by user.

        A model overrides this with an exact, faster computation. See ``models.sam``.
        """
        return loop_gradients(self, shared, private_block, samples_U, loss, radii)

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
        """Local mini-batch SGD of a ragged block of users; the default goes user by user.

        With ``by_length`` a user's movement of an item row is weighted by its own L1 norm instead
        of by the user's weight. A model overrides this with an exact, faster computation. See
        ``models.local_sgd``.
        """
        return rowwise_sgd(
            self, shared, private_block, batches_U, weights_U, rates, by_length=by_length
        )

    def scores_all(self, shared: Tensors, private_block: Tensors) -> Tensor:
        """Score the whole catalogue for a block of users. Returns (U, I)."""
        with torch.no_grad():
            return self.scores(shared, private_block, None)
