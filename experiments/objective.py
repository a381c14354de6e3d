"""A mean of differentiable losses of named tensors, with its gradient and curvature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum

import torch
from torch import Tensor

from models.types import Tensors

Term = Callable[[Tensors], Tensor]
"""A differentiable scalar of the shared parameters: one user's loss."""


@dataclass(frozen=True)
class MeanLoss:
    """L(θ) = mean of the terms; the private part of each user stays as it is."""

    terms: Sequence[Term]

    def value(self, point: Tensors) -> float:
        """L at a point."""
        with torch.no_grad():
            return fsum(float(term(point)) for term in self.terms) / len(self.terms)

    def gradient(self, point: Tensors) -> tuple[float, Tensors]:
        """L and ∇L at a point."""
        total, values = {n: torch.zeros_like(t) for n, t in point.items()}, list[float]()
        for term in self.terms:
            leaf = _leaf(point)
            value = term(leaf)
            values.append(float(value.detach()))
            _add(total, leaf, torch.autograd.grad(value, _flat(leaf), materialize_grads=True))
        return fsum(values) / len(values), {n: t / len(values) for n, t in total.items()}

    def curvature(self, point: Tensors, vector: Tensors) -> Tensors:
        """∇²L · vector at a point: each term's gradient differentiated along the vector."""
        total = {n: torch.zeros_like(t) for n, t in point.items()}
        for term in self.terms:
            leaf = _leaf(point)
            gradients = torch.autograd.grad(
                term(leaf), _flat(leaf), create_graph=True, materialize_grads=True
            )
            along = torch.stack(
                [(g * vector[n]).sum() for n, g in zip(leaf, gradients, strict=True)]
            ).sum()
            if along.requires_grad:  # else the term is linear in all of its tensors
                _add(total, leaf, torch.autograd.grad(along, _flat(leaf), materialize_grads=True))
        return {n: t / len(self.terms) for n, t in total.items()}


def _leaf(point: Tensors) -> Tensors:
    return {n: t.detach().requires_grad_() for n, t in point.items()}


def _flat(leaf: Tensors) -> list[Tensor]:
    return list(leaf.values())


def _add(total: Tensors, leaf: Tensors, parts: Sequence[Tensor]) -> None:
    """Add in place what was computed by the tensors of ``leaf``."""
    for name, part in zip(leaf, parts, strict=True):
        total[name] += part


def inner(one: Tensors, other: Tensors) -> float:
    """Inner product over all tensors together, in double precision."""
    return fsum(float((one[n].double() * other[n].double()).sum()) for n in sorted(one))


def combined(*parts: tuple[float, Tensors]) -> Tensors:
    """Linear combination of points; a factor of zero leaves the sum of the others as it is."""
    (scale, first), *others = parts
    total = {n: scale * t for n, t in first.items()}
    for factor, tensors in others:
        total = {n: t + factor * tensors[n] for n, t in total.items()}
    return total
