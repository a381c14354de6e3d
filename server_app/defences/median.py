"""Coordinate-wise median, of an item row among the users who touched it.

Source: Yin et al., Byzantine-Robust Distributed Learning (ICML 2018, arXiv 1803.01498), over all
clients; by rows here (``server_app.defences.base``).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from server_app.defences.base import Defence, coordinate_wise
from strategies.by_user import UserUpdates
from strategies.defence import Scene, Verdict


@dataclass(frozen=True)
class Median(Defence):
    """The median of each entry."""

    def combined(self, updates: UserUpdates, scene: Scene) -> Verdict:
        """A median in place of the mean; nobody is flagged."""
        return Verdict(coordinate_wise(updates, scene, median))


def median(values_N: Tensor) -> Tensor:
    """Median over the first dimension; the mean of the middle two of an even number."""
    ordered, count = values_N.sort(dim=0).values, len(values_N)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
