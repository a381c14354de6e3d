"""Krum: the one update that lies closest to its neighbours.

Source: Blanchard et al. (NeurIPS 2017). With n updates of which f are expected to be malicious, an
update's score is the sum of squared distances to its n − f − 2 nearest; the least wins, and of
equals the one of the user with the lowest index.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server_app.defences.base import Expecting, gram, without
from strategies.by_user import UserUpdates
from strategies.defence import Scene, Verdict

LEAST = 4
"""Updates that Krum needs: with fewer nobody has a neighbour to be judged by."""


@dataclass(frozen=True)
class Krum(Expecting):
    """One user's update, and no other."""

    def combined(self, updates: UserUpdates, scene: Scene) -> Verdict:
        """The update of the least score; all others are flagged."""
        kept_U = np.zeros(len(updates), dtype=bool)
        kept_U[int(self.scores(updates, scene).argmin())] = True
        return without(updates, scene, kept_U)

    def scores(self, updates: UserUpdates, scene: Scene) -> npt.NDArray[np.float64]:
        """Score (U,) of each update.

        Raises:
            ValueError: for fewer than four updates.

        """
        if len(updates) < LEAST:
            raise ValueError(
                f"krum compares neighbours and needs {LEAST} updates or more a round, got "
                f"{len(updates)}: raise federation.fraction"
            )
        return krum_scores(gram(updates, scene), self.expected(len(updates)))


def krum_scores(gram_UU: npt.NDArray[np.float64], expected: int) -> npt.NDArray[np.float64]:
    """Scores (U,) from inner products, with ``expected`` malicious updates."""
    squares_U = np.diag(gram_UU)
    distances_UU = np.maximum(squares_U[:, None] + squares_U - 2 * gram_UU, 0)
    np.fill_diagonal(distances_UU, np.inf)
    near = max(1, len(gram_UU) - expected - 2)
    scores_U: npt.NDArray[np.float64] = np.sort(distances_UU, axis=1)[:, :near].sum(1)
    return scores_U
