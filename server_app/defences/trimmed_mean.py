"""Coordinate-wise trimmed mean, of an item row among the users who touched it.

Source: Yin et al., Byzantine-Robust Distributed Learning (ICML 2018, arXiv 1803.01498), over all
clients; by rows here (``server_app.defences.base``).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from server_app.defences.base import Expecting, coordinate_wise
from strategies.by_user import UserUpdates
from strategies.defence import Scene, Verdict


@dataclass(frozen=True)
class TrimmedMean(Expecting):
    """The mean of each entry without the ``malicious`` share at either end."""

    def combined(self, updates: UserUpdates, scene: Scene) -> Verdict:
        """A trimmed mean in place of the mean; nobody is flagged."""
        return Verdict(coordinate_wise(updates, scene, self.trimmed))

    def trimmed(self, values_N: Tensor) -> Tensor:
        """Mean over the first dimension without the b greatest and b least.

        b is the expected number of malicious ones among N, rounded up, and leaves one value or
        two at least: of two values nothing can be trimmed.
        """
        count = len(values_N)
        cut = min(self.expected(count), (count - 1) // 2)
        return values_N.sort(dim=0).values[cut : count - cut].mean(0)
