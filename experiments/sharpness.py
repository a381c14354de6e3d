"""How sharp a minimum is: the rise of the loss in a ball, and the Hessian's top eigenvalue.

The rise is max L(θ + δ) - L(θ) over ‖δ‖ ≤ ρ, the quantity that sharpness-aware minimisation
bounds (Foret et al., arXiv 2010.01412, equation 1), searched by projected gradient ascent with
steps of a fixed length, as Madry et al. (arXiv 1706.06083) search for adversarial examples. A
search finds a lower bound of the maximum.

The eigenvalue comes by the Lanczos method (ARPACK's, with implicit restarts) on Hessian-vector
products (Pearlmutter, Neural Computation 1994). Power iteration, as in PyHessian (Yao et al.,
arXiv 1912.07145), rests on a lower eigenvalue for many steps where two lie close together.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from experiments.objective import MeanLoss, combined, inner
from models.types import Tensors
from server_app.errors import ServerError

Floats = npt.NDArray[np.float64]
ASCENT_STEPS = 10
STRIDE = 2.5
"""All steps of an ascent together, in radii: far enough to reach the border from any side."""
TOLERANCE = 1e-4
"""Of an eigenvalue's residual, as its share."""
MOST_RESTARTS = 100
"""Of 20 Hessian-vector products, of which a restart keeps the best part."""


@dataclass(frozen=True)
class Eigenpair:
    """An eigenvalue of a Hessian and its vector of norm one."""

    value: float
    vector: Tensors
    residual: float
    """‖Hv - λv‖: some eigenvalue lies within it of λ."""
    products: int
    """Hessian-vector products spent."""


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

    Its residual ‖Hv - λv‖ is at most 1e-4 · |λ|, and the rounding of the products.

    Raises:
        ServerError: it was not found within 100 restarts.

    """
    hessian = _Hessian(loss, point)
    start = np.concatenate([rng.standard_normal(t.numel()) for t in point.values()])
    if not hessian(start).any():  # all of a drawn vector is in the kernel: the Hessian is zero
        return hessian.pair(0.0, start)
    if hessian.size == 1:
        return hessian.pair(float(hessian(np.ones(1))[0]), start)
    try:
        values, vectors = eigsh(
            LinearOperator((hessian.size,) * 2, matvec=hessian, dtype=np.float64),
            k=1, which="LA", v0=start, tol=TOLERANCE, maxiter=MOST_RESTARTS,
        )  # fmt: skip
    except ArpackError as error:
        raise ServerError(f"the Hessian's greatest eigenvalue was not found: {error}") from error
    return hessian.pair(float(values[0]), vectors[:, 0])


class _Hessian:
    """∇²L at a point, as a function of one long vector, that counts its calls."""

    def __init__(self, loss: MeanLoss, point: Tensors) -> None:
        self.loss, self.point, self.products = loss, point, 0
        self.size = sum(t.numel() for t in point.values())

    def __call__(self, vector: Floats) -> Floats:
        self.products += 1
        image = self.loss.curvature(self.point, self._named(vector))
        return np.concatenate([image[n].double().numpy().ravel() for n in self.point])

    def pair(self, value: float, vector: Floats) -> Eigenpair:
        unit = vector / np.linalg.norm(vector)
        residual = float(np.linalg.norm(self(unit) - value * unit))
        return Eigenpair(value, self._named(unit), residual, self.products)

    def _named(self, vector: Floats) -> Tensors:
        ends = np.cumsum([t.numel() for t in self.point.values()])[:-1]
        parts = zip(self.point.items(), np.split(vector, ends), strict=True)
        return {n: torch.from_numpy(part.reshape(t.shape)).to(t) for (n, t), part in parts}
