"""NeuMF's shared-perturbed pass: every user has moved weights of his own.

Part of ``models.neumf_block``. With s = ρ/‖g_θ‖, a user's embeddings p (GMF) and u (MLP),
e = dL/ds of his pairs and d the sum of the first layer's deltas, three parts of his gradient
have rank one, so they are never written out:

* rows of item_gmf: e ⊗ v with v = p ∘ w_gmf. The moved rows enter the moved logits by
  G·q + s(v·q)·e with q = p ∘ ŵ_gmf, and the gradient of w_gmf by Gᵀê + s(e·ê)·v;
* the first layer's user half: d ⊗ u. Its moved product with u is W·u + s‖u‖²·d;
* the first layer's bias: d.

Only what depends on moved weights goes user by user; the rest is done for a group at once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from models.neumf_layers import Layers
from models.neumf_room import Room
from models.neumf_users import GroupUsers
from models.sam import NORM_EPS


class PerturbedPass:
    """Moves the shared parameters along each user's gradient and differentiates there.

    The room for a user's weights and their gradient is reused from user to user.
    """

    def __init__(self, layers: Layers, radius: float) -> None:
        self.layers, self.radius = layers, radius
        self.gradient, self.moved = layers.zeros_like(), layers.zeros_like()

    def prepare(self, room: Room, users: GroupUsers, errors_N: Tensor) -> None:
        """What the base pass's gradient has for a whole group: rows and vectors."""
        torch.mm(room.deltas[0], self.layers.item_w_HE, out=room.moves_NE)
        biases = [users.deltas_UH, *(users.sums(delta) for delta in room.deltas[1:])]
        outputs = [
            users.gmf_sums_UF * users.gmf_UF,
            users.weighted_sums(errors_N, room.activations[-1]),
            users.sums(errors_N[:, None]),
        ]
        self.vectors_UV = torch.cat([*biases, *outputs], dim=1)
        rank_one_U = users.deltas_UH.square().sum(1) * users.mlp_squares_U
        rank_one_U += users.sums(errors_N.square()[:, None])[:, 0] * users.gates_UF.square().sum(1)
        self.squares: list[float] = (rank_one_U + self.vectors_UV.square().sum(1)).tolist()
        self.mlp_squares = users.mlp_squares_U.tolist()
        self.scales: list[float] = []
        self.gates_UF = torch.empty_like(users.gates_UF)
        """q: the weights of an item's GMF row at the moved parameters."""

    def forward(
        self, k: int, room: Room, users: GroupUsers, errors_N: Tensor, logits_N: Tensor
    ) -> None:
        """Write logits and activations of the group's user ``k``, given dL/ds of the base pass.

        ``room.moves_NE`` becomes the moved rows of item_mlp.
        """
        scale = self._move(k, room)
        moved, gate_F = self.moved, self.gates_UF[k]
        torch.mul(users.gmf_UF[k], moved.gmf_w_F, out=gate_F)
        step = scale * (1 + self.mlp_squares[k])
        half_H = torch.add(users.half_UH[k], users.deltas_UH[k], alpha=step)
        torch.addmm(half_H, room.moves_NE, moved.item_w_transposed, out=room.activations[0])
        moved.forward(room.activations[0], room.activations)
        torch.mv(room.gmf_NF, gate_F, out=logits_N)
        logits_N.add_(errors_N, alpha=scale * float(users.gates_UF[k] @ gate_F))
        moved.logits(room.activations, logits_N)

    def backward(self, room: Room, errors_N: Tensor) -> None:
        """Write the deltas; ``room.mlp_NE`` becomes the gradient by the rows of item_mlp."""
        self.moved.backward(room.activations, errors_N, room.deltas)
        torch.mm(room.deltas[0], self.moved.item_w_HE, out=room.mlp_NE)

    def finish(
        self,
        room: Room,
        users: GroupUsers,
        base_errors_N: Tensor,
        errors_N: Tensor,
        total: Layers,
    ) -> None:
        """Add a group's gradient to ``total``, less what follows from sums of deltas."""
        total.accumulate(room.activations, room.deltas, errors_N)
        total.item_w_HE.addmm_(room.deltas[0].T, room.moves_NE)
        scales_U1 = errors_N.new_tensor(self.scales)[:, None]
        along_UF = scales_U1 * users.sums((base_errors_N * errors_N)[:, None]) * users.gates_UF
        gmf_UF = users.weighted_sums(errors_N, room.gmf_NF) + along_UF
        total.gmf_w_F.add_((gmf_UF * users.gmf_UF).sum(0))

    def _move(self, k: int, room: Room) -> float:
        """Go from θ to θ + s·g with s = ρ/(‖g‖ + 1e-12); returns s."""
        g, layers = self.gradient, self.layers
        g.products(room.activations, room.deltas, keep=0)
        torch.mm(room.deltas[0].T, room.mlp_NE, out=g.item_w_HE)
        g.vectors.copy_(self.vectors_UV[k])
        square = self.squares[k] + _square(g.matrices) + _square(room.moves_NE)
        scale = self.radius / (math.sqrt(square) + NORM_EPS)
        torch.add(layers.beyond_user, g.beyond_user, alpha=scale, out=self.moved.beyond_user)
        torch.add(room.mlp_NE, room.moves_NE, alpha=scale, out=room.moves_NE)
        self.scales.append(scale)
        return scale


def _square(tensor: Tensor) -> float:
    flat = tensor.view(-1)
    return float(torch.dot(flat, flat))
