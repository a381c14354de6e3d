"""Block-wise sharpness-aware gradients, one user at a time: the readable reference.

Source: FedRecGEL (arXiv 2603.11503), local training. With the shared block θ and the
private block u of one user and its loss L:

    g_θ, g_u = ∇L(θ, u)
    h_θ = ∂L/∂θ at (θ + ρ_shared · g_θ/‖g_θ‖, u)
    h_u = ∂L/∂u at (θ, u + ρ_private · g_u/‖g_u‖)

Each norm runs over all tensors of its block together. A radius of zero, or a zero
gradient, means no perturbation, and the plain gradient is returned as it is.

Adaptive radii (ASAM, Kwon et al., arXiv 2102.11600, equation 5) measure the perturbation
relative to the parameters: with T = |w| + η for every entry w of a block, the block moves by
ρ · T² g/‖T g‖, so that scaling a layer up and the next one down changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from models.losses import Loss
from models.types import Samples, Tensors

NORM_EPS = 1e-12
ADAPTIVE_ETA = 0.01
"""η of T = |w| + η, the value of the paper's experiments: entries near zero can still move."""


class Scores(Protocol):
    """What is differentiated: a ``models.base.ScoringModel``, or a part of one."""

    def logits(self, shared: Tensors, private: Tensors, items_S: Tensor) -> Tensor:
        """Score of each of one user's items (S,); differentiable."""
        ...


@dataclass(frozen=True)
class Radii:
    """Perturbation radii ρ of the shared and of the private block; zero switches one off."""

    shared: float = 0.0
    private: float = 0.0
    adaptive: bool = False
    """ASAM: the radii are relative to the size of each parameter."""

    @property
    def any_adaptive(self) -> bool:
        """Whether there is a perturbation and it is an adaptive one."""
        return self.adaptive and (self.shared > 0 or self.private > 0)


@dataclass(frozen=True)
class UserGradients:
    """h_θ, h_u and the losses (3,): base, shared-perturbed, private-perturbed (nan if off)."""

    shared: Tensors
    private: Tensors
    losses: Tensor


@dataclass(frozen=True)
class BlockGradients:
    """``shared`` summed over the block, ``private`` (U, …), ``losses`` (U, 3) as above."""

    shared: Tensors
    private: Tensors
    losses: Tensor


def global_norm(tensors: Tensors) -> Tensor:
    """Euclidean norm over all tensors together, in order of their names."""
    first, *others = (tensors[k].square().sum() for k in sorted(tensors))
    return torch.sqrt(sum(others, first))


def perturb(point: Tensors, gradient: Tensors, radius: float, adaptive: bool = False) -> Tensors:
    """Return ``point + radius · gradient / (‖gradient‖ + 1e-12)``.

    Adaptive: ``point + radius · T² gradient / (‖T gradient‖ + 1e-12)``, ``T = |point| + η``.
    """
    if adaptive:
        sizes = {name: point[name].abs() + ADAPTIVE_ETA for name in point}
        relative = {name: sizes[name] * gradient[name] for name in point}
        scale = radius / (global_norm(relative) + NORM_EPS)
        return {name: point[name] + scale * sizes[name] * relative[name] for name in point}
    scale = radius / (global_norm(gradient) + NORM_EPS)
    return {name: point[name] + scale * gradient[name] for name in point}


def _gradients(
    model: Scores,
    shared: Tensors,
    private: Tensors,
    samples: Samples,
    loss: Loss,
    wrt: tuple[str, ...],
) -> tuple[Tensor, Tensors, Tensors]:
    """Loss and gradients with respect to the blocks named in ``wrt``."""
    blocks = {"shared": shared, "private": private}
    leaf = {
        b: {n: t.detach().requires_grad_(b in wrt) for n, t in blocks[b].items()} for b in blocks
    }
    like = next(iter(shared.values()))
    items_S = torch.from_numpy(samples.items_S).to(like.device)
    labels_S = torch.from_numpy(samples.labels_S).to(like)
    logits_S = model.logits(leaf["shared"], leaf["private"], items_S)
    value = loss.of_user(logits_S, labels_S)
    wanted = [leaf[b][n] for b in wrt for n in leaf[b]]
    flat = iter(torch.autograd.grad(value, wanted))
    out = {b: ({n: next(flat) for n in leaf[b]} if b in wrt else {}) for b in ("shared", "private")}
    return value.detach(), out["shared"], out["private"]


def sam_gradients(
    model: Scores,
    shared: Tensors,
    private: Tensors,
    samples: Samples,
    loss: Loss,
    radii: Radii,
) -> UserGradients:
    """SAM gradients of one user by automatic differentiation.

    ``private`` holds the user's model parameters only (no optimiser moments).
    """
    both = ("shared", "private")
    value, h_shared, h_private = _gradients(model, shared, private, samples, loss, both)
    losses = value.new_full((3,), torch.nan)
    losses[0] = value
    g_shared, g_private = h_shared, h_private
    if radii.shared > 0:
        moved = perturb(shared, g_shared, radii.shared, radii.adaptive)
        losses[1], h_shared, _ = _gradients(model, moved, private, samples, loss, ("shared",))
    if radii.private > 0:
        moved = perturb(private, g_private, radii.private, radii.adaptive)
        losses[2], _, h_private = _gradients(model, shared, moved, samples, loss, ("private",))
    return UserGradients(h_shared, h_private, losses)


def loop_gradients(
    model: Scores,
    shared: Tensors,
    private_block: Tensors,
    samples_U: Sequence[Samples],
    loss: Loss,
    radii: Radii,
) -> BlockGradients:
    """The block's gradients user by user with :func:`sam_gradients`, summed in order."""
    total = {name: torch.zeros_like(tensor) for name, tensor in shared.items()}
    users = []
    for row, samples in enumerate(samples_U):
        private = {name: tensor[row] for name, tensor in private_block.items()}
        user = sam_gradients(model, shared, private, samples, loss, radii)
        for name in total:
            total[name] += user.shared[name]
        users.append(user)
    private_out = {n: torch.stack([u.private[n] for u in users]) for n in private_block}
    return BlockGradients(total, private_out, torch.stack([u.losses for u in users]))
