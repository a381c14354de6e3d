"""MultiKrum: the updates of the least Krum scores, added up.

Source: Blanchard et al. (NeurIPS 2017). Of n updates n − f stay, f the number expected to be
malicious.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from server_app.defences.base import without
from server_app.defences.krum import Krum
from strategies.by_user import UserUpdates
from strategies.defence import Scene, Verdict


@dataclass(frozen=True)
class MultiKrum(Krum):
    """All updates but the expected number with the greatest scores."""

    def combined(self, updates: UserUpdates, scene: Scene) -> Verdict:
        """The sum of those that stay; the others are flagged."""
        order_U = np.argsort(self.scores(updates, scene), kind="stable")
        kept_U = np.zeros(len(updates), dtype=bool)
        kept_U[order_U[: len(updates) - self.expected(len(updates))]] = True
        return without(updates, scene, kept_U)
