"""Linear item-item scores (EASE^R): a user is its history, and has no vector of its own.

Steck, WWW 2019 (arXiv 1905.03375). Score of item j is Σ B[i, j] over the items i of the history.
The shared B is whole, or has the entries of largest size in each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.base import ScoringModel
from models.types import History, IntArray, Tensors

WEIGHTS, COUNTED, HISTORY = "item_weights", "counted_items", "history"
BITS = 24
"""Items a number of a set: whole numbers below 2²⁴ are exact in float32."""
SLAB = 512
"""Rows of B whose largest entries are looked for at once."""


@dataclass(frozen=True)
class ItemWeights(ScoringModel):
    """Shared ``item_weights``; private ``counted_items``, the set that a server has counted.

    ``item_weights`` is B (I, I); with ``top_k`` it is (I, 2k): the k entries of largest size in
    each row, and after them the items that they are of. ``counted_items`` (⌈I/24⌉,) has an item
    a bit. The model's own scores need ``history``, rows of 0 and 1, among the private tensors.

    Raises:
        ValueError: when ``top_k`` is below 1.

    """

    top_k: int | None = None
    """Entries of a row of B that are sent and scored with; None is all."""

    item_tables: ClassVar[frozenset[str]] = frozenset({WEIGHTS})
    scores_from_history: ClassVar[bool] = True
    block_users: ClassVar[int] = 256
    """A block's upload is as large as a user's."""

    def __post_init__(self) -> None:
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1 or null, got {self.top_k}")

    def init_shared(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Zero weights: nobody was counted."""
        return {WEIGHTS: self.packed(torch.zeros(num_items, num_items), torch.float32)}

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Nothing of the user was counted."""
        return {COUNTED: torch.zeros(-(-num_items // BITS))}

    def packed(self, weights_II: Tensor, dtype: torch.dtype) -> Tensor:
        """B as it is sent: whole, or the k entries of largest size in each row and their items."""
        if self.top_k is None:
            return weights_II.to(dtype)
        return torch.cat([self._largest(rows, dtype) for rows in torch.split(weights_II, SLAB)])

    def _largest(self, rows_RI: Tensor, dtype: torch.dtype) -> Tensor:
        k = min(self.top_k or rows_RI.shape[1], rows_RI.shape[1])
        items_RK = rows_RI.abs().topk(k, dim=1).indices
        return torch.cat([rows_RI.gather(1, items_RK).to(dtype), items_RK.to(dtype)], dim=1)

    def summed(self, shared: Tensors, history: History) -> Tensor:
        """Scores (U, I) of users with these histories."""
        table = shared[WEIGHTS]
        items_S = torch.from_numpy(history.items_S).to(table.device)
        if self.top_k is None:
            starts_U = torch.from_numpy(np.cumsum(history.lengths_U) - history.lengths_U)
            return functional.embedding_bag(items_S, table, starts_U.to(table.device), mode="sum")
        weights_SK, others_SK = table[items_S].chunk(2, dim=1)
        scores_UI = table.new_zeros(len(history.lengths_U), len(table))
        users_S = torch.from_numpy(history.users).to(table.device)
        places_SK = users_S[:, None] * len(table) + others_SK.long()
        scores_UI.view(-1).index_add_(0, places_SK.flatten(), weights_SK.flatten())
        return scores_UI

    # ---- the contract of models, which knows no histories ----------------------------------
    def logits(self, shared: Tensors, private: Tensors, items_S: Tensor) -> Tensor:
        """Scores of one user (S,)."""
        return self.scores(shared, {HISTORY: private[HISTORY][None]}, None)[0, items_S]

    def scores(self, shared: Tensors, private_block: Tensors, items_R: IntArray | None) -> Tensor:
        """Scores (U, R), or (U, I)."""
        users, items_S = private_block[HISTORY].nonzero(as_tuple=True)
        lengths_U = users.bincount(minlength=len(private_block[HISTORY]))
        scores_UI = self.summed(shared, History(items_S.cpu().numpy(), lengths_U.cpu().numpy()))
        return scores_UI if items_R is None else scores_UI[:, _index(items_R, scores_UI)]

    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray
    ) -> Tensor:
        """Scores of each user's own candidates (U, C)."""
        scores_UI = self.scores(shared, private_block, None)
        return scores_UI.gather(1, _index(items_UC, scores_UI))


def _index(index: IntArray, like: Tensor) -> Tensor:
    return torch.from_numpy(index).to(like.device)


def as_bits(items_S: IntArray, words: int, like: Tensor) -> Tensor:
    """A set of items as numbers (W,) of 24 bits, of the type of ``like`` and where it is."""
    bits = np.zeros(words * BITS, dtype=np.int64)
    bits[items_S] = 1
    return torch.from_numpy(bits.reshape(words, BITS) @ (1 << np.arange(BITS))).to(like)


def from_bits(words_W: Tensor) -> IntArray:
    """The items of such a set, ascending."""
    words = words_W.cpu().numpy().astype(np.int64)
    bits = (words[:, None] >> np.arange(BITS)) & 1
    return np.flatnonzero(bits)
