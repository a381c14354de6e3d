"""Synchronous rounds: a cohort of those online is asked, and all or the deadline are awaited."""

from __future__ import annotations

import numpy as np

from models.rng import Role, derive_rng
from models.types import IntArray
from server_app.devices.participation import Participation, Tally
from server_app.devices.profile import Fleet
from server_app.errors import RoundError
from server_app.sampling import cohort_size

ATTEMPTS = 10_000
"""After so many empty attempts in a row nobody will ever deliver."""


class Synchronous:
    """Rounds of ``fraction`` of the users, of those that are online."""

    def __init__(self, fleet: Fleet, seed: int, fraction: float) -> None:
        self._fleet, self._seed = fleet, seed
        self._size = cohort_size(fleet.num_users, fraction)
        self._clock = 0.0
        self._round = 0

    def take(self, server_round: int) -> Participation:
        """Ask cohorts until somebody delivers.

        Who does not deliver goes on from its old private state, as if it had not been asked.

        Raises:
            RoundError: where the deadline is so short that nobody ever keeps it.

        """
        tally, began = Tally(), self._clock
        for attempt in range(ATTEMPTS):
            online = self._fleet.online(self._clock)
            tally.online = len(online) / self._fleet.num_users
            if not len(online):
                self._clock = self._fleet.next_slot(self._clock)
                continue
            arrived = self._attempt(server_round, attempt, online, tally)
            if len(arrived):
                self._round = server_round
                tally.delivered = len(arrived)
                tally.end(began, self._clock, self._fleet.task)
                return Participation(arrived, np.full(len(arrived), server_round - 1), tally)
            tally.empty += 1
        raise RoundError(
            f"round {server_round}: no device delivered in {ATTEMPTS} attempts; the fastest one "
            f"needs {self._fleet.seconds_U.min():.1f} s: a longer devices.deadline_s is needed"
        )

    def oldest(self) -> int:
        """All start from the newest."""
        return self._round

    def _attempt(self, server_round: int, attempt: int, online: IntArray, tally: Tally) -> IntArray:
        """Ask one cohort; those that deliver, ascending. The clock goes on to the round's end."""
        indices = (server_round, attempt) if attempt else (server_round,)
        rng = derive_rng(self._seed, Role.COHORT, *indices)
        asked = np.sort(rng.choice(online, size=min(self._size, len(online)), replace=False))
        seconds, deadline = self._fleet.seconds_U[asked], self._fleet.settings.deadline_s
        lost = self._fleet.dropped(asked, server_round, attempt)
        late = ~lost & (seconds > (np.inf if deadline is None else deadline))
        missed = bool((lost | late).any())
        # Without a deadline a drop-out is noticed when its update would have come.
        self._clock += float(seconds.max()) if deadline is None or not missed else deadline
        tally.selected += len(asked)
        tally.dropped += int(lost.sum())
        tally.late += int(late.sum())
        arrived: IntArray = asked[~(lost | late)].astype(np.int64)
        return arrived
