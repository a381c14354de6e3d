"""Settings of simulated devices, and what they make of each user.

After FS-Real (Chen et al., KDD 2023, arXiv 2303.13363), which runs federated learning with the
availability and speed of real phones: participation is not uniform, and time is that of devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from conf.tree import DevicesConfig
from models.rng import Role, derive_rng
from models.types import IntArray

Floats = npt.NDArray[np.float64]
WORK, DOWN, UP = 0, 1, 2
"""Streams of a user's speeds; online users and drop-outs have streams of their own."""
ONLINE, DROPS = 3, 4
LEAST = 1e-3
"""Nobody is online, or delivers, less often than this."""


@dataclass(frozen=True)
class Devices(DevicesConfig):
    """Seeded profiles by user activity: a user's training interactions over their mean.

    ``p · activity^exponent`` is cut to [0.001, 1]; exponent 0 makes all users alike. Speeds are
    log-normal around their median, with the standard deviation ``spread`` of the logarithm.
    """

    simulated: ClassVar[bool] = True

    availability: float = 0.3
    """Probability that a user of mean activity is online in a time slot."""
    availability_exponent: float = 0.5
    """Above 0 active users are online more often."""
    slot_s: float = 60.0
    """Length of a time slot in seconds of the simulated clock; who is online is drawn anew each."""
    samples_per_s: float = 2000.0
    """Median of training samples a second."""
    down_bytes_per_s: float = 2.5e6
    """Median download rate."""
    up_bytes_per_s: float = 6e5
    """Median upload rate."""
    spread: float = 1.0
    latency_s: float = 0.2
    """Of a message, each way."""
    drop_out: float = 0.1
    """Probability that a user of mean activity starts and does not deliver."""
    drop_out_exponent: float = 0.0
    """Below 0 active users drop out less often."""
    deadline_s: float | None = None
    """A synchronous round ends after so many simulated seconds, an asynchronous device's place is
    given to another: what arrives later is late and not used. None: all are awaited."""

    def __post_init__(self) -> None:
        for name in ("slot_s", "samples_per_s", "down_bytes_per_s", "up_bytes_per_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("spread", "latency_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if not 0 < self.availability <= 1:
            raise ValueError(f"availability must be above 0 and at most 1, got {self.availability}")
        if not 0 <= self.drop_out < 1:
            raise ValueError(f"drop_out must be at least 0 and below 1, got {self.drop_out}")
        if self.deadline_s is not None and self.deadline_s <= 0:
            raise ValueError(f"deadline_s must be positive, got {self.deadline_s}")


@dataclass(frozen=True)
class Task:
    """What a device has to do in a round, the same for all but for the samples."""

    bytes_down: int
    """The shared parameters."""
    bytes_up: int
    """A dense update: which rows a device will touch is not known beforehand."""
    samples_U: IntArray
    """Training samples of each user: epochs × positives × (1 + negatives)."""


class Fleet:
    """The devices of all users; all it says depends on the seed, the settings and the data."""

    def __init__(self, settings: Any, seed: int, activity_U: IntArray, task: Task) -> None:
        """``activity_U``: training interactions of each user, by global index."""
        self.settings: Devices = settings
        self.task = task
        self.num_users = len(activity_U)
        self._seed = seed
        self._online: tuple[int, IntArray] | None = None
        """Of the slot that was asked for last."""
        relative_U = activity_U / max(float(activity_U.mean()), 1e-12)
        s = self.settings
        self.available_U = _probability(s.availability, relative_U, s.availability_exponent, 1.0)
        self.drops_U = _probability(s.drop_out, relative_U, s.drop_out_exponent, 1.0 - LEAST)
        self.seconds_U = self._seconds()
        """From being asked to the arrival of the update, always the same for a user."""

    def online(self, clock: float) -> IntArray:
        """Users that are online in the slot of this time, ascending."""
        slot = self.slot(clock)
        if self._online is None or self._online[0] != slot:
            rng = derive_rng(self._seed, Role.DEVICES, ONLINE, slot)
            self._online = slot, np.flatnonzero(rng.random(self.num_users) < self.available_U)
        return self._online[1]

    def slot(self, clock: float) -> int:
        """Number of the slot that a time lies in."""
        return int(clock // self.settings.slot_s)

    def next_slot(self, clock: float) -> float:
        """When the next slot begins."""
        return (self.slot(clock) + 1) * self.settings.slot_s

    def dropped(self, users: IntArray, *draw: int) -> npt.NDArray[np.bool_]:
        """Which of the users that start in this draw will not deliver."""
        rng = derive_rng(self._seed, Role.DEVICES, DROPS, *draw)
        lost_U: npt.NDArray[np.bool_] = rng.random(self.num_users)[users] < self.drops_U[users]
        return lost_U

    def _seconds(self) -> Floats:
        s, task = self.settings, self.task
        work_U = task.samples_U / self._speed(WORK, s.samples_per_s)
        down_U = task.bytes_down / self._speed(DOWN, s.down_bytes_per_s)
        up_U = task.bytes_up / self._speed(UP, s.up_bytes_per_s)
        seconds_U: Floats = 2 * s.latency_s + down_U + work_U + up_U
        return seconds_U

    def _speed(self, stream: int, median: float) -> Floats:
        rng = derive_rng(self._seed, Role.DEVICES, stream)
        speed_U: Floats = median * np.exp(
            self.settings.spread * rng.standard_normal(self.num_users)
        )
        return speed_U


def _probability(base: float, relative_U: Floats, exponent: float, most: float) -> Floats:
    """Of each user; zero stays zero, so that drop-outs can be switched off."""
    if base == 0:
        return np.zeros(len(relative_U))
    raised_U = np.where(relative_U > 0, relative_U, 1e-12) ** exponent
    probability_U: Floats = np.clip(base * raised_U, LEAST, most)
    return probability_U
