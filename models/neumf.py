"""NeuMF: a generalised matrix factorisation branch beside a multilayer perceptron.

Source: He et al., "Neural Collaborative Filtering" (WWW 2017), section 3.4, in the widths
of FedRecGEL (arXiv 2603.11503): with F = 32 the GMF embeddings are F wide, the MLP
embeddings 4F, the hidden layers 8F → 4F → 2F → F with ReLU, and one linear output over
concat(GMF product, MLP). MLP input is concat(user, item).

Shared: item_gmf (I, F), item_mlp (I, 4F), mlp_w0 (4F, 8F), mlp_b0 (4F,) and so on as
(out, in), out_w (1, 2F), out_b (1,). Private to a user: user_gmf (F,), user_mlp (4F,).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models import neumf_block
from models.base import DotProduct, ScoringModel
from models.losses import Loss
from models.neumf_layers import Layers, layer_widths
from models.sam import BlockGradients, Radii
from models.types import IntArray, Samples, Tensors

EMBEDDING_STD = 0.01
SCORE_PAIRS = 2048
"""Pairs scored at once, unless one user has more candidates: 1.8 MiB of activations for F = 32."""
CANDIDATE_PAIRS = 1 << 16
"""Candidates whose distinct items share one table of first-layer halves (at most 32 MiB
for F = 32)."""


@dataclass(frozen=True)
class NeuMF(ScoringModel):
    """NeuMF of GMF width ``factors`` with ``mlp_layers`` hidden layers."""

    item_tables: ClassVar[frozenset[str]] = frozenset({"item_gmf", "item_mlp"})
    dot_product: ClassVar[DotProduct | None] = DotProduct("item_gmf", "user_gmf")

    factors: int = 32
    """GMF width F, at least 1; also the width of the MLP's output."""
    mlp_layers: int = 3
    """Hidden layers, at least 1; each halves its input, so the MLP embeddings are
    F · 2^(mlp_layers − 1) wide."""

    def __post_init__(self) -> None:
        for name in ("factors", "mlp_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of the MLP's input and of each hidden layer's output."""
        return layer_widths(self.factors, self.mlp_layers)

    def init_shared(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Embeddings N(0, 0.01²), MLP Xavier uniform, output Kaiming uniform (a = 1), biases 0."""
        widths, last = self.widths, 2 * self.factors
        shared = {
            "item_gmf": _normal(rng, num_items, self.factors),
            "item_mlp": _normal(rng, num_items, widths[0] // 2),
        }
        for k, (fan_in, fan_out) in enumerate(pairwise(widths)):
            shared[f"mlp_w{k}"] = _uniform(rng, sqrt(6 / (fan_in + fan_out)), fan_out, fan_in)
            shared[f"mlp_b{k}"] = torch.zeros(fan_out)
        # gain √(2 / (1 + a²)) = 1 for a = 1, hence the bound √(3 / fan_in)
        shared["out_w"] = _uniform(rng, sqrt(3 / last), 1, last)
        return {**shared, "out_b": torch.zeros(1)}

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Embeddings N(0, 0.01²)."""
        return {
            "user_gmf": _normal(rng, self.factors),
            "user_mlp": _normal(rng, self.widths[0] // 2),
        }

    def dot_items(self, shared: Tensors) -> Tensor:
        """GMF embeddings (I, F) times their weights in the output."""
        return shared["item_gmf"] * shared["out_w"][0, : self.factors]

    def logits(self, shared: Tensors, private: Tensors, items_S: Tensor) -> Tensor:
        """Score items for one user; differentiable. Returns logits (S,)."""
        user_SE = private["user_mlp"].expand(len(items_S), -1)
        hidden = torch.cat([user_SE, shared["item_mlp"][items_S]], dim=1)
        for k in range(self.mlp_layers):
            hidden = functional.linear(hidden, shared[f"mlp_w{k}"], shared[f"mlp_b{k}"]).relu()
        product_SF = private["user_gmf"] * shared["item_gmf"][items_S]
        both = torch.cat([product_SF, hidden], dim=1)
        return functional.linear(both, shared["out_w"], shared["out_b"])[:, 0]

    @torch.no_grad()
    def scores(self, shared: Tensors, private_block: Tensors, items_R: IntArray | None) -> Tensor:
        """Score items for a block of users. Returns (U, R), or (U, I) for ``items_R`` None.

        Temporaries are bounded by the activations of SCORE_PAIRS pairs, whatever U and I are.
        """
        layers = Layers.pack(shared, self.widths)
        num_rows = len(shared["item_gmf"]) if items_R is None else len(items_R)
        user_UH, gate_UF = _user_halves(layers, private_block)
        out_UR = gate_UF.new_empty(len(gate_UF), num_rows)
        room = _score_room(layers, SCORE_PAIRS)
        for start in range(0, num_rows, SCORE_PAIRS):
            part = slice(start, start + SCORE_PAIRS)
            rows = part if items_R is None else torch.from_numpy(items_R[part]).to(gate_UF.device)
            item_CH = shared["item_mlp"][rows] @ layers.item_w_HE.T
            gmf_UC = gate_UF @ shared["item_gmf"][rows].T
            step = max(1, SCORE_PAIRS // len(item_CH))
            for users in (slice(u, u + step) for u in range(0, len(gate_UF), step)):
                gmf_uC = gmf_UC[users]
                own = [tensor[: gmf_uC.numel()] for tensor in room]
                first = own[0].view(*gmf_uC.shape, -1)
                torch.add(user_UH[users, None], item_CH, out=first)
                logits_N = layers.logits(layers.forward(own[0], own), gmf_uC.reshape(-1))
                out_UR[users, part] = logits_N.view(-1, len(item_CH))
        return out_UR

    @torch.no_grad()
    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray
    ) -> Tensor:
        """Score each user's own candidates. Returns (U, C)."""
        layers = Layers.pack(shared, self.widths)
        user_UH, gate_UF = _user_halves(layers, private_block)
        out_UC = gate_UF.new_empty(items_UC.shape)
        users = max(1, CANDIDATE_PAIRS // max(1, items_UC.shape[1]))
        for start in range(0, len(items_UC), users):
            part = slice(start, start + users)
            out_UC[part] = _candidates(layers, shared, user_UH[part], gate_UF[part], items_UC[part])
        return out_UC

    def block_gradients(
        self,
        shared: Tensors,
        private_block: Tensors,
        samples_U: Sequence[Samples],
        loss: Loss,
        radii: Radii,
    ) -> BlockGradients:
        """SAM gradients of a ragged block of users, exact and without autograd.

        Adaptive perturbations go user by user: they have no rank-one parts to leave unwritten.
        """
        if radii.any_adaptive:
            return super().block_gradients(shared, private_block, samples_U, loss, radii)
        return neumf_block.block_gradients(
            shared, private_block, samples_U, loss, radii, self.widths
        )


def _user_halves(layers: Layers, private_block: Tensors) -> tuple[Tensor, Tensor]:
    """Users' half of the first layer (U, H) and their weights of the item's GMF row (U, F)."""
    user_UH = torch.addmm(layers.biases[0], private_block["user_mlp"], layers.user_w_HE.T)
    return user_UH, private_block["user_gmf"] * layers.gmf_w_F


def _score_room(layers: Layers, num_pairs: int) -> list[Tensor]:
    """Memory for the activations of so many pairs, used again and again."""
    return [layers.flat.new_empty(num_pairs, width) for width in layers.widths[1:]]


def _candidates(
    layers: Layers, shared: Tensors, user_UH: Tensor, gate_UF: Tensor, items_UC: IntArray
) -> Tensor:
    """Scores (U, C), with the item half of the first layer once for each distinct item."""
    items_R, rows = np.unique(items_UC, return_inverse=True)
    rows_UC, wanted_R = (
        torch.from_numpy(index).to(gate_UF.device)
        for index in (rows.reshape(items_UC.shape), items_R)
    )
    item_RH = shared["item_mlp"][wanted_R] @ layers.item_w_HE.T
    gmf_RF = shared["item_gmf"][wanted_R]
    step, out = max(1, SCORE_PAIRS // max(1, items_UC.shape[1])), gate_UF.new_empty(items_UC.shape)
    room = _score_room(layers, max(SCORE_PAIRS, items_UC.shape[1]))
    for users in (slice(u, u + step) for u in range(0, len(rows_UC), step)):
        rows_uC = rows_UC[users]
        own = [tensor[: rows_uC.numel()] for tensor in room]
        torch.index_select(item_RH, 0, rows_uC.view(-1), out=own[0])
        own[0].view(*rows_uC.shape, own[0].shape[1]).add_(user_UH[users, None])
        gmf_NF = gmf_RF.index_select(0, rows_uC.view(-1))
        gmf_uC = (gmf_NF.view(*rows_uC.shape, gmf_NF.shape[1]) @ gate_UF[users, :, None])[:, :, 0]
        logits_N = layers.logits(layers.forward(own[0], own), gmf_uC.reshape(-1))
        out[users] = logits_N.view(rows_uC.shape)
    return out


def _normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.normal(0.0, EMBEDDING_STD, shape).astype(np.float32))


def _uniform(rng: np.random.Generator, bound: float, *shape: int) -> Tensor:
    return torch.from_numpy(rng.uniform(-bound, bound, shape).astype(np.float32))
