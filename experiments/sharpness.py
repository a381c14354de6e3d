"""How sharp a minimum is: the rise of the loss in a ball, and the Hessian's top eigenvalue.

The rise is max L(θ + δ) - L(θ) over ‖δ‖ ≤ ρ, the quantity that sharpness-aware minimisation
bounds (Foret et al., arXiv 2010.01412, equation 1), searched by projected gradient ascent with
steps of a fixed length, as Madry et al. (arXiv 1706.06083) search for adversarial examples. A
search finds a lower bound of the maximum.

The eigenvalue comes by power iteration on Hessian-vector products (Pearlmutter, Neural
Computation 1994; Yao et al., PyHessian, arXiv 1912.07145).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
import torch

from experiments.objective import MeanLoss, combined, inner
from models.types import Tensors

ASCENT_STEPS = 10
STRIDE = 2.5
"""All steps of an ascent together, in radii: far enough to reach the border from any side."""
TOLERANCE, MOST_PRODUCTS = 1e-4, 100


@dataclass(frozen=True)
class Eigenpair:
    """An eigenvalue of a Hessian and its vector of norm one."""

    value: float
    vector: Tensors
    residual: float
    """‖Hv - λv‖: some eigenvalue lies within it of λ."""
    products: int
    """Hessian-vector products spent."""
    converged: bool


def highest_rise(
    loss: MeanLoss, point: Tensors, radius: float, steps: int = ASCENT_STEPS,
    first: Tensors | None = None,
) -> float:  # fmt: skip
    """The largest rise L(θ + δ) - L(θ) found with ‖δ‖ ≤ radius, at least 0.

    Each of ``steps`` ascents by 2.5 · radius / steps along the unit gradient and returns to the
    ball. ``first`` is the direction of the first step where the gradient is exactly zero.
    """
    stride, moved = STRIDE * radius / steps, combined((0.0, point))
    start, gradient = loss.gradient(point)
    best = start
    for _ in range(steps):
        length = sqrt(inner(gradient, gradient))
        if length == 0 and first is not None:
            gradient, length = first, sqrt(inner(first, first))
        if length == 0:
            break
        moved = _in_ball(combined((1.0, moved), (stride / length, gradient)), radius)
        value, gradient = loss.gradient(combined((1.0, point), (1.0, moved)))
        best = max(best, value)
    return best - start


def _in_ball(moved: Tensors, radius: float) -> Tensors:
    length = sqrt(inner(moved, moved))
    return moved if length <= radius else combined((radius / length, moved))


def mean_rise_alone(loss: MeanLoss, point: Tensors, radius: float) -> float:
    """Mean over the terms of each one's own highest rise: each user has a δ of its own.

    That is what FedRecGEL's users perturb against; δ of the mean loss has to suit all of them.
    """
    rises = [highest_rise(MeanLoss([term]), point, radius) for term in loss.terms]
    return sum(rises) / len(rises)


def top_eigenvalue(loss: MeanLoss, point: Tensors, rng: np.random.Generator) -> Eigenpair:
    """The greatest eigenvalue of ∇²L at a point, from a start drawn of ``rng``.

    Power iteration finds the eigenvalue of greatest magnitude. Where that is negative, it goes
    on with the Hessian shifted by it, whose greatest magnitude is that of the wanted one.
    """
    start = {n: _normal(rng, t) for n, t in point.items()}
    found = _power(lambda v: loss.curvature(point, v), start)
    if found.value >= 0:
        return found
    shift = found.value
    again = _power(lambda v: combined((1.0, loss.curvature(point, v)), (-shift, v)), start)
    products = found.products + again.products
    return replace(again, value=again.value + shift, products=products)


def _power(product: Callable[[Tensors], Tensors], start: Tensors) -> Eigenpair:
    """Power iteration until the Rayleigh quotient moves by less than its share TOLERANCE."""
    vector, before, count = _unit(start), float("inf"), 0
    while True:
        image, count = product(vector), count + 1
        value, length = inner(vector, image), sqrt(inner(image, image))
        converged = length == 0 or abs(value - before) <= TOLERANCE * abs(value)
        if converged or count == MOST_PRODUCTS:
            error = combined((1.0, image), (-value, vector))
            return Eigenpair(value, vector, sqrt(inner(error, error)), count, converged)
        vector, before = combined((1 / length, image)), value


def _unit(tensors: Tensors) -> Tensors:
    return combined((1 / sqrt(inner(tensors, tensors)), tensors))


def _normal(rng: np.random.Generator, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(tuple(like.shape))).to(like)
