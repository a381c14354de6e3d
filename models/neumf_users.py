"""Users of a group in NeuMF's block gradients: their embeddings, and sums over their pairs.

Shapes as in ``models.neumf_layers``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.neumf_layers import Layers
from models.neumf_room import Room


class GroupUsers:
    """Embeddings of a group's users and what follows from them."""

    def __init__(self, gmf_UF: Tensor, mlp_UE: Tensor, users_N: Tensor, layers: Layers) -> None:
        """``users_N`` is each pair's user, counted from the group's first."""
        self.gmf_UF, self.mlp_UE, self.users_N, self.layers = gmf_UF, mlp_UE, users_N, layers
        self.mlp_squares_U = mlp_UE.square().sum(1)
        users_U = torch.arange(len(gmf_UF), device=users_N.device)
        self.owner_UN = (users_U[:, None] == users_N).to(gmf_UF)
        self.gates_UF = gmf_UF * layers.gmf_w_F
        """The user's weights of an item's GMF row."""
        self.half_UH = torch.addmm(layers.biases[0], mlp_UE, layers.user_w_transposed)
        """First layer's bias and user half."""

    def moved(self, radius: float, eps: float) -> GroupUsers:
        """Each user moved by ``radius`` along its own gradient."""
        h_gmf, h_mlp = self.gradients()
        squares_U = h_gmf.square().sum(1) + h_mlp.square().sum(1)
        scale_U1 = radius / (squares_U.sqrt() + eps)[:, None]
        gmf_UF, mlp_UE = self.gmf_UF + scale_U1 * h_gmf, self.mlp_UE + scale_U1 * h_mlp
        return GroupUsers(gmf_UF, mlp_UE, self.users_N, self.layers)

    def spread(self, values_UX: Tensor) -> Tensor:
        """A row for each pair, or one that broadcasts when there is one user."""
        return values_UX if len(values_UX) == 1 else values_UX.index_select(0, self.users_N)

    def first_layer(self, room: Room) -> None:
        """Write the first layer's pre-activation from its item and user halves."""
        torch.add(room.half_NH, self.spread(self.half_UH), out=room.activations[0])

    def sums(self, values_NX: Tensor) -> Tensor:
        """Sums over each user's pairs (U, X)."""
        return self.owner_UN @ values_NX

    def weighted_sums(self, weights_N: Tensor, values_NX: Tensor) -> Tensor:
        """Sums over each user's pairs of a weight times a row (U, X)."""
        return (self.owner_UN * weights_N) @ values_NX

    def collect(self, room: Room, errors_N: Tensor) -> None:
        """Keep the sums that gradients by the users need, from a pass at these embeddings."""
        self.gmf_sums_UF = self.weighted_sums(errors_N, room.gmf_NF)
        self.deltas_UH = self.sums(room.deltas[0])

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Gradients by user_gmf and user_mlp; after :meth:`collect`."""
        return self.gmf_sums_UF * self.layers.gmf_w_F, self.deltas_UH @ self.layers.user_w_HE
