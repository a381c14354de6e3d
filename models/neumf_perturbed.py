"""NeuMF's shared-perturbed pass for one user, whose weights are then the user's own.

Part of ``models.neumf_block``. The room for the user's weights and their gradient is
reused from user to user; of the item tables only the rows of the user's pairs are moved.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.neumf_layers import Layers
from models.sam import NORM_EPS


@dataclass
class User:
    """A user's embeddings and, replaced by :meth:`PerturbedPass.move`, his items' rows."""

    gmf_F: Tensor
    mlp_E: Tensor
    item_gmf_NF: Tensor
    item_mlp_NE: Tensor


class PerturbedPass:
    """Moves the shared parameters along one user's gradient and differentiates there."""

    def __init__(self, layers: Layers, radius: float) -> None:
        self.layers, self.radius = layers, radius
        self.gradient, self.moved = layers.zeros_like(), layers.zeros_like()

    def move(
        self,
        user: User,
        activations: list[Tensor],
        deltas: list[Tensor],
        errors_N: Tensor,
        gmf_F: Tensor,
        delta_H: Tensor,
    ) -> None:
        """Go from θ to θ + ρ · g/(‖g‖ + 1e-12), given what the user's base pass left.

        ``gmf_F`` and ``delta_H`` are sums over his pairs, as in the base pass.
        """
        g, layers = self.gradient, self.layers
        g.accumulate(activations, deltas, errors_N, keep=0)
        torch.outer(delta_H, user.mlp_E, out=g.user_w_HE)
        torch.mm(deltas[0].T, user.item_mlp_NE, out=g.item_w_HE)
        g.biases[0].copy_(delta_H)
        torch.mul(gmf_F, user.gmf_F, out=g.gmf_w_F)
        g_gmf_NF = torch.outer(errors_N, user.gmf_F * layers.gmf_w_F)
        g_mlp_NE = deltas[0] @ layers.item_w_HE
        norm = sum(_square(t) for t in (g.flat, g_gmf_NF, g_mlp_NE)) ** 0.5
        scale = self.radius / (norm + NORM_EPS)
        torch.add(layers.flat, g.flat, alpha=scale, out=self.moved.flat)
        user.item_gmf_NF.add_(g_gmf_NF, alpha=scale)
        user.item_mlp_NE.add_(g_mlp_NE, alpha=scale)

    def forward(self, user: User) -> tuple[Tensor, list[Tensor]]:
        """Logits (N,) at the moved parameters, and the activations."""
        moved = self.moved
        user_H = torch.addmv(moved.biases[0], moved.user_w_HE, user.mlp_E)
        activations = moved.forward(torch.addmm(user_H, user.item_mlp_NE, moved.item_w_HE.T))
        product_N = torch.mv(user.item_gmf_NF, user.gmf_F * moved.gmf_w_F)
        return moved.logits(activations, product_N), activations

    def backward(
        self, user: User, activations: list[Tensor], errors_N: Tensor, total: Layers
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add the gradient by the layers to ``total``, less the first layer's user half.

        Returns the gradients by the rows of item_gmf and item_mlp and the sum over pairs of
        the first layer's deltas (H,), from which the block makes the missing part.
        """
        moved = self.moved
        deltas = moved.backward(activations, errors_N)
        total.accumulate(activations, deltas, errors_N)
        total.item_w_HE.addmm_(deltas[0].T, user.item_mlp_NE)
        total.gmf_w_F.addcmul_(torch.mv(user.item_gmf_NF.T, errors_N), user.gmf_F)
        h_gmf_NF = torch.outer(errors_N, user.gmf_F * moved.gmf_w_F)
        return h_gmf_NF, deltas[0] @ moved.item_w_HE, deltas[0].sum(0)


def _square(tensor: Tensor) -> float:
    flat = tensor.view(-1)
    return float(torch.dot(flat, flat))
