"""SAM gradients of NeuMF for a ragged block of users, exact and without autograd.

Equal to ``models.sam.loop_gradients`` up to rounding, with the work cut by identities:

* an item drawn several times by a user is scored once (``models.pairs``);
* the user half of the first layer is computed once a user, and its item half once for
  each distinct item of the block where the shared weights are unperturbed;
* one base pass serves both perturbations, and the private pass has no weight gradients;
* without a shared perturbation first-layer errors are summed by item before any product;
* gradients of rank one are kept as their factors (``models.neumf_perturbed``), and those by
  item_gmf become one product a block.

The base and the private pass run over groups of users small enough for a core's cache.
The shared-perturbed pass has weights of the user's own and goes user by user.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from models.losses import Loss
from models.neumf_layers import Layers
from models.neumf_perturbed import PerturbedPass
from models.neumf_room import Room
from models.neumf_users import GroupUsers
from models.pairs import Group, Pairs, distinct_pairs, groups
from models.sam import NORM_EPS, BlockGradients, Radii
from models.tables import row_table
from models.types import Samples, Tensors

GROUP_PAIRS = 1024
"""Pairs worked on together: many enough that calls do not dominate, few enough for the cache."""
DENSE_CELLS = 64
"""A dense (users, items) product beats adding row by row up to this many cells a pair."""
BASE, SHARED, PRIVATE = range(3)


@torch.inference_mode()
def block_gradients(
    shared: Tensors,
    private_block: Tensors,
    samples_U: Sequence[Samples],
    loss: Loss,
    radii: Radii,
    widths: tuple[int, ...],
) -> BlockGradients:
    """Gradients of a block; ``widths`` as in ``models.neumf_layers.layer_widths``."""
    table = shared["item_gmf"]
    pairs = distinct_pairs(samples_U, len(table), loss, like=table)
    parts = list(groups(pairs, GROUP_PAIRS))
    layers = Layers.pack(shared, widths)
    room = Room.like(layers, max(map(len, parts)), table.shape[1])
    block = _Block(layers, shared, private_block, pairs, radii)
    for group in parts:
        block.train(group, room.first(len(group)))
    return block.result(len(table))


class _Block:
    """A block's inputs, its passes, and room for the results (named ``h_…``)."""

    def __init__(
        self, layers: Layers, shared: Tensors, private: Tensors, pairs: Pairs, radii: Radii
    ) -> None:
        self.layers, self.pairs, self.radii = layers, pairs, radii
        self.perturbed = PerturbedPass(layers, radii.shared)
        self.item_gmf_RF = shared["item_gmf"].index_select(0, pairs.items_R)
        self.item_mlp_RE = shared["item_mlp"].index_select(0, pairs.items_R)
        self.item_half_RH = self.item_mlp_RE @ layers.item_w_transposed
        # clones: products then read memory that is aligned alike in every run
        self.user_gmf_UF = private["user_gmf"].clone()
        self.user_mlp_UE = private["user_mlp"].clone()
        self.h_user_gmf_UF = torch.empty_like(self.user_gmf_UF)
        self.h_user_mlp_UE = torch.empty_like(self.user_mlp_UE)
        self.h_item_mlp_RE = torch.zeros_like(self.item_mlp_RE)
        self.h_layers = layers.zeros_like()
        self.deltas_RH = torch.zeros_like(self.item_half_RH)
        self.logits_3P = layers.flat.new_zeros(3, len(pairs.rows_P))
        # of the pass that the shared gradient is taken at:
        self.errors_P = torch.empty_like(self.logits_3P[0])
        self.gates_UF = torch.empty_like(self.user_gmf_UF)
        self.deltas_UH = layers.flat.new_empty(len(self.user_gmf_UF), len(layers.biases[0]))

    # ---- passes --------------------------------------------------------------------------
    def train(self, group: Group, room: Room) -> None:
        """All passes of a group of users."""
        rows_N = self.pairs.rows_P[group.pairs]
        torch.index_select(self.item_half_RH, 0, rows_N, out=room.half_NH)
        torch.index_select(self.item_gmf_RF, 0, rows_N, out=room.gmf_NF)
        gmf_UF, mlp_UE = self.user_gmf_UF[group.users], self.user_mlp_UE[group.users]
        users_N = self.pairs.users_P[group.pairs] - group.users.start
        users = GroupUsers(gmf_UF, mlp_UE, users_N, self.layers)
        errors_N = self.unperturbed(group, room, users, BASE)
        shared = self.shared_perturbed if self.radii.shared > 0 else self.shared_plain
        shared(group, room, users, errors_N)
        if self.radii.private > 0:
            users = users.moved(self.radii.private, NORM_EPS)
            self.unperturbed(group, room, users, PRIVATE)
        self.h_user_gmf_UF[group.users], self.h_user_mlp_UE[group.users] = users.gradients()

    def unperturbed(self, group: Group, room: Room, users: GroupUsers, kind: int) -> Tensor:
        """Forward and backward at the shared parameters as they are; returns dL/ds (N,)."""
        layers, logits_N = self.layers, self.logits_3P[kind, group.pairs]
        users.first_layer(room)
        layers.forward(room.activations[0], room.activations)
        torch.sum(room.gmf_NF * users.spread(users.gates_UF), 1, out=logits_N)
        layers.logits(room.activations, logits_N)
        errors_N = self.pairs.errors(logits_N, group.users)
        layers.backward(room.activations, errors_N, room.deltas)
        users.collect(room, errors_N)
        return errors_N

    def shared_plain(self, group: Group, room: Room, users: GroupUsers, errors_N: Tensor) -> None:
        """Add the group's plain gradient by the shared parameters."""
        self.h_layers.accumulate(room.activations, room.deltas, errors_N)
        self.h_layers.gmf_w_F.add_((users.gmf_sums_UF * users.gmf_UF).sum(0))
        self.deltas_RH.index_add_(0, self.pairs.rows_P[group.pairs], room.deltas[0])
        self.keep(group, room, users.deltas_UH, errors_N, users.gates_UF)

    def shared_perturbed(
        self, group: Group, room: Room, users: GroupUsers, errors_N: Tensor
    ) -> None:
        """Add the group's gradient, each user's at parameters perturbed along his own."""
        perturbed, rows_N = self.perturbed, self.pairs.rows_P[group.pairs]
        torch.index_select(self.item_mlp_RE, 0, rows_N, out=room.mlp_NE)
        perturbed.prepare(room, users, errors_N)
        moved_errors_N = self.errors_P[group.pairs]
        vectors = (errors_N, self.logits_3P[SHARED, group.pairs], moved_errors_N)
        own = (torch.split(vector, group.sizes) for vector in vectors)
        parts = zip(room.split(group.sizes), *own, strict=True)
        for k, (part, base_n, logits_n, errors_n) in enumerate(parts):
            user = group.users.start + k
            perturbed.forward(k, part, users, base_n, logits_n)
            errors_n.copy_(self.pairs.errors(logits_n, slice(user, user + 1)))
            perturbed.backward(part, errors_n)
        perturbed.finish(room, users, errors_N, moved_errors_N, self.h_layers)
        self.h_item_mlp_RE.index_add_(0, rows_N, room.mlp_NE)
        self.keep(group, room, users.sums(room.deltas[0]), moved_errors_N, perturbed.gates_UF)

    def keep(
        self, group: Group, room: Room, deltas_UH: Tensor, errors_N: Tensor, gates_UF: Tensor
    ) -> None:
        """Keep what the rest of the shared gradient follows from, once for the block."""
        self.deltas_UH[group.users], self.gates_UF[group.users] = deltas_UH, gates_UF
        self.errors_P[group.pairs] = errors_N
        for bias, delta in zip(self.h_layers.biases[1:], room.deltas[1:], strict=True):
            bias.add_(delta.sum(0))

    # ---- results -------------------------------------------------------------------------
    def result(self, num_items: int) -> BlockGradients:
        """Finish the sums over users and spread item rows over the catalogue."""
        total, pairs = self.h_layers, self.pairs
        torch.mm(self.deltas_UH.T, self.user_mlp_UE, out=total.user_w_HE)
        torch.sum(self.deltas_UH, 0, out=total.biases[0])
        torch.sum(self.errors_P, 0, keepdim=True, out=total.out_b)
        if self.radii.shared <= 0:
            torch.mm(self.deltas_RH.T, self.item_mlp_RE, out=total.item_w_HE)
            torch.mm(self.deltas_RH, self.layers.item_w_HE, out=self.h_item_mlp_RE)
        tables = {"item_gmf": self.h_item_gmf(), "item_mlp": self.h_item_mlp_RE}
        shared = {name: _table(pairs.items_R, rows, num_items) for name, rows in tables.items()}
        private = {"user_gmf": self.h_user_gmf_UF, "user_mlp": self.h_user_mlp_UE}
        return BlockGradients({**shared, **total.unpack()}, private, self.losses())

    def h_item_gmf(self) -> Tensor:
        """Gradient by the rows of item_gmf: each pair adds dL/ds times its user's weights."""
        users_P, rows_P = self.pairs.users_P, self.pairs.rows_P
        if len(self.gates_UF) * len(self.item_gmf_RF) > DENSE_CELLS * len(rows_P):
            rows_PF = self.errors_P[:, None] * self.gates_UF.index_select(0, users_P)
            return torch.zeros_like(self.item_gmf_RF).index_add_(0, rows_P, rows_PF)
        errors_UR = self.errors_P.new_zeros(len(self.gates_UF), len(self.item_gmf_RF))
        errors_UR[users_P, rows_P] = self.errors_P
        return errors_UR.T @ self.gates_UF

    def losses(self) -> Tensor:
        """Losses (U, 3) of the passes, nan for those that were not made."""
        made = (True, self.radii.shared > 0, self.radii.private > 0)
        losses_U3 = self.logits_3P.new_full((len(self.gates_UF), 3), torch.nan)
        for kind in (kind for kind, on in enumerate(made) if on):
            losses_U3[:, kind] = self.pairs.losses(self.logits_3P[kind])
        return losses_U3


def _table(items_R: Tensor, rows_RX: Tensor, num_items: int) -> Tensor:
    """Rows of distinct items as a table of the catalogue, sparse where most rows are zero."""
    if 2 * len(items_R) < num_items:
        return row_table(items_R, rows_RX, num_items)
    return rows_RX.new_zeros(num_items, rows_RX.shape[1]).index_copy_(0, items_R, rows_RX)
