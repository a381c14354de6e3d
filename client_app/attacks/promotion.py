"""Promotion by profiles: malicious users train honestly, on likes of the target items.

A share of the user's positives becomes target items in turn; their negatives stay. The update may
be multiplied by ``boost``, to make up for how few the malicious users are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from client_app.attacks.base import Attack, Round
from models.types import IntArray, Samples, Update


@dataclass(frozen=True)
class Promotion(Attack):
    """An update of a profile with the targets in it."""

    knows: ClassVar[str] = "its own items and vector"
    share: float = 0.5
    """Part of the user's positives that become targets, rounded up."""
    boost: float = 1.0
    """Factor of the update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {self.share}")
        if self.boost <= 0:
            raise ValueError(f"boost must be positive, got {self.boost}")

    def poisoned(self, honest: Update, user: int, scene: Round) -> Update:
        """The update of the profile, ``boost`` times."""
        targets_T, share = scene.target_rows, self.share
        update = scene.again(user, lambda samples: profile(samples, targets_T, share))
        return replace(update, tensors={n: self.boost * t for n, t in update.tensors.items()})


def profile(samples: Samples, targets_T: IntArray, share: float) -> Samples:
    """The samples with the first ``share`` of the positives, in random order, as targets.

    A negative that is a target becomes one of the other items of the profile's first positive:
    nobody trains on a target as both.
    """
    (positives,) = np.nonzero(samples.labels_S > 0)
    chosen = positives[: math.ceil(share * len(positives))]
    items_S = samples.items_S.copy()
    replaced = items_S[chosen]
    negatives = samples.labels_S == 0
    clashing = negatives & np.isin(items_S, targets_T)
    items_S[chosen] = np.resize(targets_T, len(chosen))
    if clashing.any():
        items_S[clashing] = np.resize(replaced, int(clashing.sum()))
    return replace(samples, items_S=items_S)
