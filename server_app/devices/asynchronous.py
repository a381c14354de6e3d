"""Asynchronous rounds: devices work at their own pace, every K arrivals make a server step.

FedBuff (Nguyen et al., AISTATS 2022, arXiv 2106.06639). Who arrives when depends on the devices
alone and not on what is trained, so the order is known before anything is: the users of a step are
trained when their updates arrive, from the parameters they were given when they were asked.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from models.rng import Role, derive_rng
from server_app.devices.participation import Participation, Tally
from server_app.devices.profile import Fleet
from server_app.errors import RoundError, ServerError
from server_app.sampling import cohort_size
from strategies.async_config import AsyncConfig

EVENTS = 100_000
"""After so many events, and ten for each update of the buffer, there will never be a step."""


@dataclass(frozen=True, order=True)
class _Work:
    """A device at work, or an update that waits for its step."""

    ends: float
    user: int
    version: int
    fate: str
    """``delivered``, ``dropped`` or ``late``."""


class Asynchronous:
    """Steps of K updates; ``fraction`` of the users work at once."""

    def __init__(self, fleet: Fleet, seed: int, fraction: float, settings: AsyncConfig) -> None:
        """Raises ServerError for a buffer that the users cannot fill."""
        if settings.buffer > fleet.num_users:
            raise ServerError(
                f"strategy.async.buffer={settings.buffer} is more than the {fleet.num_users} users"
            )
        self._fleet, self._seed, self._settings = fleet, seed, settings
        self._places = cohort_size(fleet.num_users, fraction)
        self._working: list[_Work] = []
        self._buffer: list[_Work] = []
        self._busy: set[int] = set()
        self._clock, self._draws, self._version = 0.0, 0, 0
        self._fill_at: float | None = 0.0
        """When free places are to be filled next; None while there are none."""

    def take(self, server_round: int) -> Participation:
        """Let time pass until K usable updates are here.

        Raises:
            RoundError: where that never happens.

        """
        tally, began = Tally(), self._clock
        for _ in range(EVENTS + 10 * self._settings.buffer):
            self._drop_stale(tally)
            if len(self._buffer) >= self._settings.buffer:
                return self._step(tally, began)
            self._pass_time(tally)
        raise RoundError(
            f"round {server_round}: {self._settings.buffer} updates do not come together; a larger "
            "federation.fraction, strategy.async.max_staleness or devices.deadline_s is needed"
        )

    def oldest(self) -> int:
        """The version of the slowest device's parameters, or the newest."""
        return min([self._version, *(w.version for w in [*self._working, *self._buffer])])

    def _drop_stale(self, tally: Tally) -> None:
        least = self._version - self._settings.max_staleness
        for work in [work for work in self._buffer if work.version < least]:
            self._buffer.remove(work)
            self._busy.discard(work.user)
            tally.stale += 1

    def _step(self, tally: Tally, began: float) -> Participation:
        """The first K updates, in the order of their arrival."""
        count = self._settings.buffer
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        self._busy -= {work.user for work in taken}
        taken.sort(key=lambda work: work.user)
        versions = np.array([work.version for work in taken], np.int64)
        tally.delivered = count
        tally.staleness = int((self._version - versions).sum())
        tally.staleness_max = int((self._version - versions).max())
        tally.end(began, self._clock, self._fleet.task)
        self._version += 1
        return Participation(np.array([w.user for w in taken], np.int64), versions, tally)

    def _pass_time(self, tally: Tally) -> None:
        """Fill free places where that is due, else go on to what happens next."""
        if self._fill_at is not None and self._fill_at <= self._clock:
            self._fill(tally)
            return
        times = [self._fill_at] if self._fill_at is not None else []
        times += [self._working[0].ends] if self._working else []
        self._clock = min(times)
        while self._working and self._working[0].ends <= self._clock:
            self._end(heapq.heappop(self._working), tally)

    def _end(self, work: _Work, tally: Tally) -> None:
        self._fill_at = self._clock
        if work.fate == "delivered":
            self._buffer.append(work)
            return
        self._busy.discard(work.user)
        tally.dropped += work.fate == "dropped"
        tally.late += work.fate == "late"

    def _fill(self, tally: Tally) -> None:
        """Ask users who are online and not at work; what stays free waits for the next slot."""
        free, fleet = self._places - len(self._working), self._fleet
        online = fleet.online(self._clock)
        tally.online = len(online) / fleet.num_users
        idle = np.setdiff1d(online, np.fromiter(self._busy, np.int64, len(self._busy)))
        count = min(free, len(idle))
        self._fill_at = fleet.next_slot(self._clock) if count < free else None
        if not count:
            return
        self._draws += 1
        rng = derive_rng(self._seed, Role.COHORT, self._draws)
        asked = np.sort(rng.choice(idle, size=count, replace=False))
        lost = fleet.dropped(asked, self._draws)
        for user, gone in zip(asked.tolist(), lost.tolist(), strict=True):
            heapq.heappush(self._working, self._work(user, dropped=gone))
        self._busy |= set(asked.tolist())
        tally.selected += count

    def _work(self, user: int, *, dropped: bool) -> _Work:
        seconds, deadline = float(self._fleet.seconds_U[user]), self._fleet.settings.deadline_s
        late = deadline is not None and seconds > deadline
        if deadline is not None and (late or dropped):
            seconds = deadline
        fate = "dropped" if dropped else "late" if late else "delivered"
        return _Work(self._clock + seconds, user, self._version, fate)
