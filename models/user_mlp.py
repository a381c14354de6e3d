"""Each user scores items by an MLP of its own, over its own vector beside an item's embedding.

Source: GPFedRec (arXiv 2305.07866) and its public code, whose network has widths 64, 32, 16, 8
and 1 with ReLU between, on embeddings of 32. Layers start as torch's ``Linear`` layers,
uniform in ±1/√(inputs), embeddings normal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.base import ScoringModel
from models.types import IntArray, Tensors

ITEM, USER = "item_emb", "user_emb"
PIECE_VALUES = 1 << 22
"""Values of the first layer's output held at once when scoring: 16 MiB of float32."""


@dataclass(frozen=True)
class UserMLP(ScoringModel):
    """Shared ``item_emb`` (I, D); private ``user_emb`` (D,) and an MLP ``w0``, ``b0``, ….

    logit = MLP(user_emb beside item_emb), widths 2D, D, D/2, …, 1 with ``mlp_layers`` hidden.

    Raises:
        ValueError: when ``factors`` or ``mlp_layers`` is below 1, a width is not a whole number,
            or ``init_std`` is not positive and finite.

    """

    factors: int = 32
    """Embedding width D."""
    mlp_layers: int = 3
    """Hidden layers, of D, D/2, D/4, … outputs."""
    init_std: float = 1.0
    """Standard deviation of the normal draw of every embedding entry; GPFedRec's code has 1."""

    item_tables: ClassVar[frozenset[str]] = frozenset({ITEM})
    block_users: ClassVar[int] = 32

    def __post_init__(self) -> None:
        if min(self.factors, self.mlp_layers) < 1:
            raise ValueError("factors and mlp_layers must be at least 1")
        if self.factors % 2 ** (self.mlp_layers - 1):
            raise ValueError(
                f"factors must be a multiple of {2 ** (self.mlp_layers - 1)} for "
                f"{self.mlp_layers} layers, each half as wide as the one before"
            )
        if not 0 < self.init_std < math.inf:
            raise ValueError(f"init_std must be positive and finite, got {self.init_std}")

    @property
    def widths(self) -> tuple[int, ...]:
        """Inputs and outputs of the layers: 64, 32, 16, 8, 1."""
        hidden = (self.factors >> layer for layer in range(self.mlp_layers))
        return (2 * self.factors, *hidden, 1)

    def init_shared(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Draw the item embeddings (I, D)."""
        return {ITEM: self._normal(rng, (num_items, self.factors))}

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Draw one user's embedding (D,) and layers: ``w{k}`` (out, in), ``b{k}`` (out,)."""
        drawn = {USER: self._normal(rng, (self.factors,))}
        for layer, (inputs, outputs) in enumerate(self._shapes()):
            bound = 1 / math.sqrt(inputs)
            both = rng.uniform(-bound, bound, (outputs, inputs + 1)).astype(np.float32)
            drawn[f"w{layer}"] = torch.from_numpy(np.ascontiguousarray(both[:, :-1]))
            drawn[f"b{layer}"] = torch.from_numpy(np.ascontiguousarray(both[:, -1]))
        return drawn

    def logits(self, shared: Tensors, private: Tensors, items_S: Tensor) -> Tensor:
        """Score of the items (S,) for one user."""
        items_SD = shared[ITEM][items_S]
        own_H, item_w_HD = _first_layer(private)
        hidden_SH = functional.linear(items_SD, item_w_HD, own_H)
        for layer in range(1, len(self.widths) - 1):
            hidden_SH = functional.linear(
                hidden_SH.relu(), private[f"w{layer}"], private[f"b{layer}"]
            )
        return hidden_SH[:, 0]

    def scores(self, shared: Tensors, private_block: Tensors, items_R: IntArray | None) -> Tensor:
        """Score of the given items (U, R), or of all (U, I), for a block of users."""
        items_RD = shared[ITEM] if items_R is None else _rows(shared[ITEM], items_R)
        users = len(private_block[USER])
        return self.score_rows(items_RD.expand(users, *items_RD.shape), private_block)

    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray
    ) -> Tensor:
        """Score of each user's own candidates (U, C)."""
        return self.score_rows(_rows(shared[ITEM], items_UC), private_block)

    def score_rows(self, rows_URD: Tensor, private_block: Tensors) -> Tensor:
        """Score of rows that each user has for itself (U, R), some users at a time."""
        pieces = [
            self._score_piece(
                rows_URD[part], {n: private_block[n][part] for n in (USER, *self._names())}
            )
            for part in _pieces(len(rows_URD), rows_URD.shape[1] * self.factors)
        ]
        return torch.cat(pieces)

    def _score_piece(self, rows_URD: Tensor, private_block: Tensors) -> Tensor:
        own_UH, item_w_UHD = _first_layer(private_block)
        hidden_URH = torch.baddbmm(own_UH[:, None], rows_URD, item_w_UHD.mT)
        for layer in range(1, len(self.widths) - 1):
            weights_UKH, biases_UK = private_block[f"w{layer}"], private_block[f"b{layer}"]
            hidden_URH = torch.baddbmm(biases_UK[:, None], hidden_URH.relu_(), weights_UKH.mT)
        return hidden_URH[..., 0]

    def _names(self) -> list[str]:
        return [f"{kind}{layer}" for layer in range(len(self.widths) - 1) for kind in "wb"]

    def _shapes(self) -> Iterator[tuple[int, int]]:
        return zip(self.widths[:-1], self.widths[1:], strict=True)

    def _normal(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
        draw = np.float32(self.init_std) * rng.standard_normal(shape, dtype=np.float32)
        return torch.from_numpy(draw)


def _first_layer(private: Tensors) -> tuple[Tensor, Tensor]:
    """The user's part of the first layer's output (…, H), and the item half of its matrix."""
    user_D = private[USER]
    user_w_HD, item_w_HD = private["w0"].chunk(2, dim=-1)
    return (user_w_HD @ user_D[..., None])[..., 0] + private["b0"], item_w_HD


def _pieces(users: int, values_a_user: int) -> list[slice]:
    size = max(1, PIECE_VALUES // max(1, values_a_user))
    return [slice(start, start + size) for start in range(0, users, size)]


def _rows(items_ID: Tensor, index: IntArray) -> Tensor:
    return items_ID[torch.from_numpy(index).to(items_ID.device)]
