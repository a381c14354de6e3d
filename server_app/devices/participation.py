"""What a schedule of devices says of a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from models.types import IntArray
from server_app.devices.profile import Task


@dataclass
class Tally:
    """Counts of a round, and simulated time; what ``metrics.jsonl`` has of devices."""

    clock_s: float = 0.0
    """Simulated time at the end of the round."""
    seconds: float = 0.0
    """Simulated length of the round."""
    online: float = 0.0
    """Share of the users that were online when devices were last asked."""
    selected: int = 0
    """Devices that were asked in this time."""
    delivered: int = 0
    """Updates that the server's step is made of."""
    dropped: int = 0
    late: int = 0
    stale: int = 0
    """Updates that arrived and were too old to be used."""
    empty: int = 0
    """Attempts at a round in which nobody delivered."""
    bytes_down: int = 0
    """To all devices that were asked."""
    bytes_up: int = 0
    """Of all updates that arrived, used or not."""
    staleness: int = 0
    """Sum over the delivered updates of the server's steps since their device was asked."""
    staleness_max: int = 0

    def end(self, began: float, clock: float, task: Task) -> None:
        """Fill in what follows from the rest."""
        self.clock_s, self.seconds = clock, clock - began
        self.bytes_down = self.selected * task.bytes_down
        self.bytes_up = (self.delivered + self.late + self.stale) * task.bytes_up


NOT_SUMMED = ("clock_s", "online", "staleness_max")
"""Figures of a round that say nothing when they are added up."""


@dataclass(frozen=True)
class Participation:
    """The users whose updates make a round's step, and the parameters each of them started from."""

    users: IntArray
    """Global indices, ascending."""
    versions: IntArray
    """Of each: the round after whose step it was asked; the round before, unless it is stale."""
    tally: Tally

    def groups(self) -> dict[int, IntArray]:
        """Users by version, ascending in both."""
        return {int(v): self.users[self.versions == v] for v in np.unique(self.versions)}


class Schedule(Protocol):
    """Decides who takes part, round after round, from the seed alone."""

    def take(self, server_round: int) -> Participation:
        """The round's participation; rounds are taken in order, from 1."""

    def oldest(self) -> int:
        """The oldest version that a device may still work on after the rounds taken."""
