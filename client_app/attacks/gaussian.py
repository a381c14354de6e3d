"""Gaussian noise in place of the update, on the rows that the honest update touches.

Each tensor's entries are independent, with a standard deviation of ``scale`` times the root mean
square of the honest update's entries there. Rows that the user did not touch stay out: an update
of the whole catalogue would give itself away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from client_app.attacks.base import Attack, Round
from models.types import Update


@dataclass(frozen=True)
class Gaussian(Attack):
    """Noise as large as ``scale`` honest updates."""

    knows: ClassVar[str] = "its own honest update"
    scale: float = 10.0
    """Standard deviation of an entry over the root mean square of the honest ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale <= 0:
            raise ValueError(f"scale must be positive, got {self.scale}")

    def poisoned(self, honest: Update, user: int, scene: Round) -> Update:
        """Noise, from the user's own stream of the round."""
        rng = scene.rng(user)
        gradient = scene.gradient_of(honest)
        return scene.update_of({n: _noise(t, self.scale, rng) for n, t in gradient.items()}, honest)


def _noise(tensor: Tensor, scale: float, rng: np.random.Generator) -> Tensor:
    """Noise on the rows of a tensor that are not zero; on all of a vector."""
    if not tensor.is_floating_point():
        return tensor
    drawn = torch.from_numpy(rng.standard_normal(tuple(tensor.shape))).to(tensor.dtype)
    if tensor.dim() < 2:
        return scale * tensor.square().mean().sqrt() * drawn
    touched_I = tensor.reshape(len(tensor), -1).any(1)
    if not bool(touched_I.any()):
        return tensor
    size = tensor[touched_I].square().mean().sqrt()
    return torch.where(touched_I.reshape(-1, *[1] * (tensor.dim() - 1)), scale * size * drawn, 0.0)
