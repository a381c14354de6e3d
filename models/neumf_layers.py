"""NeuMF's layers as views of one vector, with a hand-written forward and backward pass.

One vector makes norms, perturbations and sums of all weights single operations. The first
layer's matrix is stored as its user half and its item half, each contiguous. Shapes beyond
``models.types``: ``N`` pairs scored together, ``H`` width of the first layer's output,
``E`` of an MLP embedding, ``F`` of a GMF embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from models.types import Tensors


def layer_widths(factors: int, mlp_layers: int) -> tuple[int, ...]:
    """Input width and the output width of each hidden layer: 8F, 4F, 2F, F for three."""
    return tuple(factors << power for power in range(mlp_layers, -1, -1))


@dataclass(frozen=True, eq=False)
class Layers:
    """Weights of the MLP and of the output layer, or a gradient of that shape."""

    flat: Tensor
    user_w_HE: Tensor
    item_w_HE: Tensor
    hidden: tuple[Tensor, ...]
    """Matrices (out, in) of the second and later layers."""
    biases: tuple[Tensor, ...]
    gmf_w_F: Tensor
    mlp_w_F: Tensor
    """The output layer's weights of the GMF product and of the MLP's output."""
    out_b: Tensor

    @classmethod
    def over(cls, flat: Tensor, widths: tuple[int, ...]) -> Layers:
        """Name the parts of ``flat``; nothing is copied."""
        half, last = widths[0] // 2, widths[-1]
        inner = list(zip(widths[2:], widths[1:-1], strict=True))
        shapes = [(widths[1], half)] * 2 + inner + [(w,) for w in widths[1:]]
        shapes += [(last,), (last,), (1,)]
        sizes = [torch.Size(shape).numel() for shape in shapes]
        parts = [p.view(s) for p, s in zip(torch.split(flat, sizes), shapes, strict=True)]
        split = 2 + len(inner)
        return cls(
            flat, parts[0], parts[1], tuple(parts[2:split]), tuple(parts[split:-3]), *parts[-3:]
        )

    @cached_property
    def beyond_user(self) -> Tensor:
        """``flat`` without ``user_w_HE``: what a perturbation of one user writes out."""
        return self.flat[self.user_w_HE.numel() :]

    @cached_property
    def matrices(self) -> Tensor:
        """The part of ``beyond_user`` with the item half and the hidden matrices."""
        matrices = (self.item_w_HE, *self.hidden)
        return self.beyond_user[: sum(matrix.numel() for matrix in matrices)]

    @cached_property
    def vectors(self) -> Tensor:
        """The part of ``beyond_user`` after the matrices: biases, gmf_w, mlp_w, out_b."""
        return self.beyond_user[self.matrices.numel() :]

    @cached_property
    def user_w_transposed(self) -> Tensor:
        """The user half of the first matrix, transposed (a view)."""
        return self.user_w_HE.T

    @cached_property
    def item_w_transposed(self) -> Tensor:
        """The item half of the first matrix, transposed (a view)."""
        return self.item_w_HE.T

    @cached_property
    def hidden_transposed(self) -> tuple[Tensor, ...]:
        """Views of ``hidden`` as (in, out)."""
        return tuple(weight.T for weight in self.hidden)

    @property
    def widths(self) -> tuple[int, ...]:
        """As in :func:`layer_widths`."""
        return (2 * self.user_w_HE.shape[1], *(len(bias) for bias in self.biases))

    def zeros_like(self) -> Layers:
        """Room for a gradient or a sum of gradients."""
        return Layers.over(torch.zeros_like(self.flat), self.widths)

    @classmethod
    def pack(cls, shared: Tensors, widths: tuple[int, ...]) -> Layers:
        """Copy the layers out of the shared parameters."""
        depth, last = len(widths) - 1, widths[-1]
        first, out = shared["mlp_w0"], shared["out_w"][0]
        parts = [*first.chunk(2, dim=1), *(shared[f"mlp_w{k}"] for k in range(1, depth))]
        parts += [*(shared[f"mlp_b{k}"] for k in range(depth)), out[:last], out[last:]]
        return cls.over(torch.cat([p.flatten() for p in [*parts, shared["out_b"]]]), widths)

    def unpack(self) -> Tensors:
        """The tensors by their names in the shared parameters."""
        out = {"mlp_w0": torch.cat([self.user_w_HE, self.item_w_HE], dim=1)}
        out |= {f"mlp_w{k}": w.clone() for k, w in enumerate(self.hidden, start=1)}
        out |= {f"mlp_b{k}": b.clone() for k, b in enumerate(self.biases)}
        out["out_w"] = torch.cat([self.gmf_w_F, self.mlp_w_F])[None]
        return {**out, "out_b": self.out_b.clone()}

    def forward(self, first_NH: Tensor, room: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Activations of every layer from the first one's pre-activation, which is overwritten.

        ``room`` has a tensor for each layer's activations, the first of which is not used.
        """
        activations = [first_NH.relu_()]
        upper = zip(self.hidden_transposed, self.biases[1:], strict=True)
        for k, (weight, bias) in enumerate(upper, start=1):
            out = None if room is None else room[k]
            activations.append(torch.addmm(bias, activations[-1], weight, out=out).relu_())
        return activations

    def logits(self, activations: Sequence[Tensor], gmf_N: Tensor) -> Tensor:
        """Logits from the activations and the GMF branch's term; ``gmf_N`` is overwritten."""
        return gmf_N.addmv_(activations[-1], self.mlp_w_F).add_(self.out_b)

    def backward(
        self, activations: Sequence[Tensor], errors_N: Tensor, deltas: Sequence[Tensor]
    ) -> None:
        """Write the gradient of the loss by every layer's pre-activation, given dL/ds."""
        torch.mul(errors_N[:, None], self.mlp_w_F, out=deltas[-1])
        _through_relu(deltas[-1], activations[-1])
        for k in range(len(self.hidden), 0, -1):
            torch.mm(deltas[k], self.hidden[k - 1], out=deltas[k - 1])
            _through_relu(deltas[k - 1], activations[k - 1])

    def accumulate(
        self, activations: Sequence[Tensor], deltas: Sequence[Tensor], errors_N: Tensor
    ) -> None:
        """Add the gradient by ``hidden`` and ``mlp_w_F``."""
        self.products(activations, deltas, keep=1)
        self.mlp_w_F.addmv_(activations[-1].T, errors_N)

    def products(
        self, activations: Sequence[Tensor], deltas: Sequence[Tensor], keep: float
    ) -> None:
        """Replace ``hidden`` by ``keep`` times itself plus its gradient.

        With ``keep = 0`` what was there is ignored.
        """
        for weight, activation, delta in zip(self.hidden, activations, deltas[1:], strict=False):
            weight.addmm_(delta.T, activation, beta=keep)


def _through_relu(gradient: Tensor, activation: Tensor) -> None:
    """Zero the gradient in place where the ReLU was off."""
    # what autograd calls for relu: one fused pass instead of a mask and a product
    torch.ops.aten.threshold_backward.grad_input(gradient, activation, 0, grad_input=gradient)
