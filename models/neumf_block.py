"""SAM gradients of NeuMF for a ragged block of users, exact and without autograd.

Equal to ``models.sam.loop_gradients`` up to rounding, with the work cut by identities:

* an item drawn several times by a user is scored once (``models.pairs``);
* the user half of the first layer is computed once a user, and its item half once for
  each distinct item of the block where the shared weights are unperturbed;
* one base pass serves both perturbations, and the private pass has no weight gradients;
* without a shared perturbation first-layer errors are summed by item before any product.

The base and the private pass run over groups of users small enough for a core's cache.
The shared-perturbed pass has weights of the user's own and goes user by user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.neumf_layers import Layers
from models.neumf_perturbed import PerturbedPass, User
from models.pairs import Group, Pairs, distinct_pairs, groups
from models.sam import NORM_EPS, BlockGradients, Radii
from models.types import Samples, Tensors

GROUP_PAIRS = 512
BASE, SHARED, PRIVATE = range(3)


@torch.no_grad()
def block_gradients(
    shared: Tensors,
    private_block: Tensors,
    samples_U: Sequence[Samples],
    loss_slice: int,
    radii: Radii,
    widths: tuple[int, ...],
) -> BlockGradients:
    """Gradients of a block; ``widths`` as in ``models.neumf_layers.layer_widths``."""
    num_items, dtype = len(shared["item_gmf"]), shared["item_gmf"].dtype
    pairs = distinct_pairs(samples_U, num_items, loss_slice, dtype)
    block = _Block(Layers.pack(shared, widths), shared, private_block, pairs, radii)
    for group in groups(pairs, GROUP_PAIRS):
        block.train(group)
    return block.result(num_items)


@dataclass(frozen=True)
class _Pass:
    """What a forward and backward pass over a group's pairs leaves behind."""

    activations: list[Tensor]
    deltas: list[Tensor]
    errors_N: Tensor
    gmf_UF: Tensor
    """Sum over each user's pairs of dL/ds times the item's GMF row."""
    deltas_UH: Tensor
    """Sum over each user's pairs of the first layer's deltas."""


class _Block:
    """A block's inputs, its passes, and room for the results (named ``h_…``)."""

    def __init__(
        self, layers: Layers, shared: Tensors, private: Tensors, pairs: Pairs, radii: Radii
    ) -> None:
        self.layers, self.pairs, self.radii = layers, pairs, radii
        self.perturbed = PerturbedPass(layers, radii.shared)
        self.item_gmf_RF = shared["item_gmf"].index_select(0, pairs.items_R)
        self.item_mlp_RE = shared["item_mlp"].index_select(0, pairs.items_R)
        self.item_half_RH = self.item_mlp_RE @ layers.item_w_HE.T
        # clones: products then read memory that is aligned alike in every run
        self.user_gmf_UF = private["user_gmf"].clone()
        self.user_mlp_UE = private["user_mlp"].clone()
        self.h_user_gmf_UF = torch.empty_like(self.user_gmf_UF)
        self.h_user_mlp_UE = torch.empty_like(self.user_mlp_UE)
        self.h_item_gmf_RF = torch.zeros_like(self.item_gmf_RF)
        self.h_item_mlp_RE = torch.zeros_like(self.item_mlp_RE)
        self.h_layers = layers.zeros_like()
        self.deltas_RH = torch.zeros_like(self.item_half_RH)
        self.deltas_UH = layers.flat.new_zeros(len(self.user_gmf_UF), len(layers.biases[0]))
        self.logits_3P = layers.flat.new_zeros(3, len(pairs.rows_P))

    def train(self, group: Group) -> None:
        """All passes of a group of users."""
        user_gmf, user_mlp = self.user_gmf_UF[group.users], self.user_mlp_UE[group.users]
        base = self.unperturbed(group, user_gmf, user_mlp, BASE)
        if self.radii.shared > 0:
            for user in range(group.users.start, group.users.stop):
                self.shared_perturbed(group, base, user)
        else:
            self.shared_plain(group, base)
        h_gmf, h_mlp = self.private_gradients(base)
        if self.radii.private > 0:
            squares_U = h_gmf.square().sum(1) + h_mlp.square().sum(1)
            scale_U1 = self.radii.private / (squares_U.sqrt() + NORM_EPS)[:, None]
            moved_gmf, moved_mlp = user_gmf + scale_U1 * h_gmf, user_mlp + scale_U1 * h_mlp
            h_gmf, h_mlp = self.private_gradients(
                self.unperturbed(group, moved_gmf, moved_mlp, PRIVATE)
            )
        self.h_user_gmf_UF[group.users], self.h_user_mlp_UE[group.users] = h_gmf, h_mlp

    def unperturbed(self, group: Group, user_gmf: Tensor, user_mlp: Tensor, kind: int) -> _Pass:
        """Forward and backward at the shared parameters as they are."""
        layers, rows_N = self.layers, self.pairs.rows_P[group.pairs]
        user_UH = torch.addmm(layers.biases[0], user_mlp, layers.user_w_HE.T)
        first_NH = self.item_half_RH.index_select(0, rows_N).add_(group.spread(user_UH))
        activations = layers.forward(first_NH)
        gmf_NF = self.item_gmf_RF.index_select(0, rows_N)
        product_N = (gmf_NF * group.spread(user_gmf * layers.gmf_w_F)).sum(1)
        logits_N = self.logits_3P[kind, group.pairs] = layers.logits(activations, product_N)
        errors_N = self.pairs.errors(logits_N, group.pairs)
        deltas = layers.backward(activations, errors_N)
        gmf_UF = group.sums(gmf_NF.mul_(errors_N[:, None]))
        return _Pass(activations, deltas, errors_N, gmf_UF, group.sums(deltas[0]))

    def private_gradients(self, done: _Pass) -> tuple[Tensor, Tensor]:
        """Gradients by user_gmf and user_mlp of the group's users."""
        return done.gmf_UF * self.layers.gmf_w_F, done.deltas_UH @ self.layers.user_w_HE

    def shared_plain(self, group: Group, base: _Pass) -> None:
        """Add the group's plain gradient by the shared parameters."""
        rows_N, user_gmf_UF = self.pairs.rows_P[group.pairs], self.user_gmf_UF[group.users]
        self.h_layers.accumulate(base.activations, base.deltas, base.errors_N)
        self.h_layers.gmf_w_F.add_((base.gmf_UF * user_gmf_UF).sum(0))
        self.deltas_UH[group.users] = base.deltas_UH
        self.deltas_RH.index_add_(0, rows_N, base.deltas[0])
        gate_NF = group.spread(user_gmf_UF * self.layers.gmf_w_F)
        self.h_item_gmf_RF.index_add_(0, rows_N, base.errors_N[:, None] * gate_NF)

    def shared_perturbed(self, group: Group, base: _Pass, user: int) -> None:
        """Add one user's gradient at the shared parameters perturbed along his own."""
        rows = slice(self.pairs.bounds[user], self.pairs.bounds[user + 1])
        local = slice(rows.start - group.pairs.start, rows.stop - group.pairs.start)
        one, rows_N = user - group.users.start, self.pairs.rows_P[rows]
        me = User(
            self.user_gmf_UF[user],
            self.user_mlp_UE[user],
            self.item_gmf_RF.index_select(0, rows_N),
            self.item_mlp_RE.index_select(0, rows_N),
        )
        deltas = [delta[local] for delta in base.deltas]
        activations = [activation[local] for activation in base.activations]
        self.perturbed.move(
            me, activations, deltas, base.errors_N[local], base.gmf_UF[one], base.deltas_UH[one]
        )
        logits_N, activations = self.perturbed.forward(me)
        self.logits_3P[SHARED, rows] = logits_N
        errors_N = self.pairs.errors(logits_N, rows)
        h_gmf_NF, h_mlp_NE, self.deltas_UH[user] = self.perturbed.backward(
            me, activations, errors_N, self.h_layers
        )
        self.h_item_gmf_RF.index_add_(0, rows_N, h_gmf_NF)
        self.h_item_mlp_RE.index_add_(0, rows_N, h_mlp_NE)

    def result(self, num_items: int) -> BlockGradients:
        """Finish the sums over users and spread item rows over the catalogue."""
        total, pairs = self.h_layers, self.pairs
        torch.mm(self.deltas_UH.T, self.user_mlp_UE, out=total.user_w_HE)
        torch.sum(self.deltas_UH, 0, out=total.biases[0])
        if self.radii.shared <= 0:
            torch.mm(self.deltas_RH.T, self.item_mlp_RE, out=total.item_w_HE)
            torch.mm(self.deltas_RH, self.layers.item_w_HE, out=self.h_item_mlp_RE)
        tables = {"item_gmf": self.h_item_gmf_RF, "item_mlp": self.h_item_mlp_RE}
        shared = {
            name: rows.new_zeros(num_items, rows.shape[1]).index_copy_(0, pairs.items_R, rows)
            for name, rows in tables.items()
        }
        private = {"user_gmf": self.h_user_gmf_UF, "user_mlp": self.h_user_mlp_UE}
        return BlockGradients({**shared, **total.unpack()}, private, self.losses())

    def losses(self) -> Tensor:
        """Losses (U, 3) of the passes, nan for those that were not made."""
        made = (True, self.radii.shared > 0, self.radii.private > 0)
        losses_U3 = torch.stack([self.pairs.losses(logits_P) for logits_P in self.logits_3P], dim=1)
        return losses_U3.masked_fill_(~torch.tensor(made), torch.nan)
