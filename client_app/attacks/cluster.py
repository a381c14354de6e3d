"""ClusterAttack: item embeddings are drawn together into a few blobs.

Source: Yu et al., UNION and ClusterAttack (AAAI 2023, arXiv 2212.05399). Items are clustered by
their embeddings, and the update descends (1/K) Σᵢ ‖vᵢ − c(i)‖²: within a blob the order of items
becomes arbitrary, while the loss looks like learning. Lengths of rows are drawn around those of
the attacker's own honest update, mean + U(0, 1) · 3 standard deviations; what is no item table
stays honest. The public code adapts K to how the loss moves; here it is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from client_app.attacks.base import Attack, Round
from models.kmeans import kmeans
from models.types import Update

SPREAD = 3.0


@dataclass(frozen=True)
class Cluster(Attack):
    """Every item row towards the centre of its cluster, as long as honest rows."""

    knows: ClassVar[str] = "its own honest update"
    clusters: int = 5
    """K, of each item table."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clusters < 1:
            raise ValueError(f"clusters must be at least 1, got {self.clusters}")

    def problem(self, strategy: Any) -> str | None:
        """There must be item embeddings."""
        if not strategy.model.item_tables:
            return "the model has no item embeddings to draw together"
        return super().problem(strategy)

    def poisoned(self, honest: Update, user: int, scene: Round) -> Update:
        """The honest update with other item tables."""
        gradient = scene.gradient_of(honest)
        for place, name in enumerate(sorted(scene.strategy.model.item_tables & gradient.keys())):
            away = scene.once(f"cluster {name}", lambda n=name, p=place: self._away(scene, n, p))  # type: ignore[misc]
            gradient[name] = camouflaged(away, gradient[name], scene.rng(user, place))
        return scene.update_of(gradient, honest)

    def _away(self, scene: Round, name: str, place: int) -> Tensor:
        """From each row's centre to the row: the server goes against it. The colluders' own."""
        rows_ID = scene.shared[name].reshape(len(scene.shared[name]), -1)
        labels_I = torch.from_numpy(kmeans(rows_ID.numpy(), self.clusters, scene.rng(place)))
        return (rows_ID - centres(rows_ID, labels_I)[labels_I]).reshape(scene.shared[name].shape)


def centres(rows_ID: Tensor, labels_I: Tensor) -> Tensor:
    """Means (K, D) of the rows of each cluster; zero for one without rows."""
    counts_K = torch.bincount(labels_I).clamp(min=1)
    sums_KD = rows_ID.new_zeros(len(counts_K), rows_ID.shape[1]).index_add_(0, labels_I, rows_ID)
    return sums_KD / counts_K[:, None]


def camouflaged(away: Tensor, honest: Tensor, rng: np.random.Generator) -> Tensor:
    """The directions with lengths around those of the honest rows that are not zero."""
    lengths_I = honest.reshape(len(honest), -1).norm(dim=1)
    known = lengths_I[lengths_I > 0]
    if not len(known):
        return torch.zeros_like(away)
    drawn_I = torch.from_numpy(rng.random(len(away))).to(away)
    wanted_I = known.mean() + drawn_I * SPREAD * known.std(correction=0)
    own_I = away.reshape(len(away), -1).norm(dim=1)
    factor_I = torch.where(own_I > 0, wanted_I / own_I.clamp(min=1e-30), torch.zeros_like(own_I))
    return away * factor_I.reshape(-1, *[1] * (away.dim() - 1))
