"""Memory that NeuMF's passes write to, reused from group to group.

Fresh tensors of these sizes would be mapped and cleared by the system at each use. Shapes as
in ``models.neumf_layers``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.neumf_layers import Layers


@dataclass(frozen=True)
class Room:
    """Rows for N pairs; parts of it serve fewer."""

    half_NH: Tensor
    """Item halves of the first layer."""
    gmf_NF: Tensor
    """Rows of item_gmf."""
    mlp_NE: Tensor
    """Rows of item_mlp."""
    moves_NE: Tensor
    activations: tuple[Tensor, ...]
    """Of every hidden layer (N, width)."""
    deltas: tuple[Tensor, ...]
    """Gradients of the loss by every layer's pre-activation (N, width)."""

    @classmethod
    def like(cls, layers: Layers, num_pairs: int, gmf_width: int) -> Room:
        """Room for ``num_pairs`` pairs, in the precision and on the device of ``layers``."""
        mlp_width, *hidden = layers.user_w_HE.shape[1], *layers.widths[1:]

        def rows(width: int) -> Tensor:
            return layers.flat.new_empty(num_pairs, width)

        return cls(
            rows(hidden[0]),
            rows(gmf_width),
            rows(mlp_width),
            rows(mlp_width),
            tuple(rows(width) for width in hidden),
            tuple(rows(width) for width in hidden),
        )

    def first(self, num_pairs: int) -> Room:
        """The same memory for so many pairs."""
        return Room(
            self.half_NH[:num_pairs],
            self.gmf_NF[:num_pairs],
            self.mlp_NE[:num_pairs],
            self.moves_NE[:num_pairs],
            tuple(tensor[:num_pairs] for tensor in self.activations),
            tuple(tensor[:num_pairs] for tensor in self.deltas),
        )

    def split(self, sizes: list[int]) -> list[Room]:
        """The same memory in consecutive parts."""
        if len(sizes) == 1:
            return [self]
        plain = (self.half_NH, self.gmf_NF, self.mlp_NE, self.moves_NE)
        halves, gmf, mlp, moves = (torch.split(tensor, sizes) for tensor in plain)
        activations, deltas = (
            zip(*(torch.split(tensor, sizes) for tensor in stack), strict=True)
            for stack in (self.activations, self.deltas)
        )
        parts = zip(halves, gmf, mlp, moves, activations, deltas, strict=True)
        return [Room(*part) for part in parts]
