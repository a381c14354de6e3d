"""Norm bounding: an update that is too long is shortened.

Source: Sun et al., Can You Really Backdoor Federated Learning? (arXiv 1911.07963). The norm is
that of all tensors of a user's update together, over the user's weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from server_app.defences.base import Defence, norms, summed
from strategies.by_user import UserUpdates
from strategies.defence import Scene, Verdict


@dataclass(frozen=True)
class NormBound(Defence):
    """Updates shortened to a norm."""

    norm: float | None = None
    """The bound; None: ``times`` the median of the round's norms."""
    times: float = 1.0

    def __post_init__(self) -> None:
        if self.norm is not None and self.norm <= 0:
            raise ValueError(f"norm must be positive, got {self.norm}")
        if self.times <= 0:
            raise ValueError(f"times must be positive, got {self.times}")

    def combined(self, updates: UserUpdates, scene: Scene) -> Verdict:
        """The sum of the updates within the bound; those that were cut are flagged."""
        norms_U = norms(updates)
        bound = self.times * float(np.median(norms_U)) if self.norm is None else self.norm
        cut_U = norms_U > bound
        factors_U = np.where(cut_U, bound / np.maximum(norms_U, 1e-30), 1.0)
        everybody = np.ones(len(updates), dtype=bool)
        total = summed(updates, scene, everybody, torch.from_numpy(factors_U))
        return Verdict(total, updates.users_U[cut_U], {"bound": bound})
