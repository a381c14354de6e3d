"""NeuMF's layers as views of one vector, with a hand-written forward and backward pass.

One vector makes norms, perturbations and sums of all weights single operations. The first
layer's matrix is stored as its user half and its item half, each contiguous. Shapes beyond
``models.types``: ``N`` pairs scored together, ``H`` width of the first layer's output,
``E`` of an MLP embedding, ``F`` of a GMF embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.types import Tensors


def layer_widths(factors: int, mlp_layers: int) -> tuple[int, ...]:
    """Input width and the output width of each hidden layer: 8F, 4F, 2F, F for three."""
    return tuple(factors << power for power in range(mlp_layers, -1, -1))


@dataclass(frozen=True)
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

    def forward(self, first_NH: Tensor) -> list[Tensor]:
        """Activations of every layer from the first one's pre-activation, which is overwritten."""
        activations = [first_NH.relu_()]
        for weight, bias in zip(self.hidden, self.biases[1:], strict=True):
            activations.append(torch.addmm(bias, activations[-1], weight.T).relu_())
        return activations

    def logits(self, activations: list[Tensor], gmf_N: Tensor) -> Tensor:
        """Logits from the activations and the GMF branch's term; ``gmf_N`` is overwritten."""
        return gmf_N.addmv_(activations[-1], self.mlp_w_F).add_(self.out_b)

    def backward(self, activations: list[Tensor], errors_N: Tensor) -> list[Tensor]:
        """Gradient of the loss by every layer's pre-activation, given dL/ds."""
        deltas = [_through_relu(errors_N[:, None] * self.mlp_w_F, activations[-1])]
        for weight, below in zip(reversed(self.hidden), activations[-2::-1], strict=True):
            deltas.append(_through_relu(deltas[-1] @ weight, below))
        return deltas[::-1]

    def accumulate(
        self, activations: list[Tensor], deltas: list[Tensor], errors_N: Tensor, keep: float = 1.0
    ) -> None:
        """Replace self by ``keep · self + gradient``, all but the first layer and ``gmf_w_F``.

        With ``keep = 0`` what was there is ignored.
        """
        above = zip(self.hidden, self.biases[1:], activations[:-1], deltas[1:], strict=True)
        for weight, bias, activation, delta in above:
            weight.addmm_(delta.T, activation, beta=keep)
            torch.add(delta.sum(0), bias, alpha=keep, out=bias)
        self.mlp_w_F.addmv_(activations[-1].T, errors_N, beta=keep)
        torch.add(errors_N.sum(), self.out_b, alpha=keep, out=self.out_b)


def _through_relu(gradient: Tensor, activation: Tensor) -> Tensor:
    # what autograd calls for relu: one fused pass instead of a mask and a product
    passed: Tensor = torch.ops.aten.threshold_backward(gradient, activation, 0)
    return passed
