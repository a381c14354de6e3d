"""Rounds on the devices' clock: who takes part, from which parameters, and how long it took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from conf.tree import Config
from models.types import IntArray, Tensors
from server_app.devices.asynchronous import Asynchronous
from server_app.devices.participation import Participation, Schedule, Tally
from server_app.devices.profile import Fleet, Task
from server_app.devices.synchronous import Synchronous
from server_app.errors import ServerError
from strategies.async_config import AsyncConfig
from strategies.base import RecStrategy
from strategies.messages import HelloReply, Older

Versions = dict[int, Tensors]


class DeviceRounds:
    """What the trainer asks before a round: who takes part, and older parameters in use."""

    def __init__(
        self, schedule: Schedule, settings: AsyncConfig | None, done: int, versions: Versions
    ) -> None:
        """Goes through the ``done`` rounds before a resume again, which takes no training.

        ``versions`` are those of the checkpoint.
        """
        self._schedule, self._settings = schedule, settings
        self.versions = dict(versions)
        """Shared parameters by the round after whose step they were new, before the newest."""
        self._now: Participation | None = None
        for server_round in range(1, done + 1):
            self._now = schedule.take(server_round)

    @property
    def tally(self) -> Tally | None:
        """Of the last round."""
        return None if self._now is None else self._now.tally

    def begin(self, server_round: int, shared: Tensors) -> IntArray:
        """The users whose updates make this round's step, ascending; ``shared`` is the newest.

        Raises:
            RoundError: when there will never be any.

        """
        if self._settings is not None:
            self.versions[server_round - 1] = shared
        self._now = self._schedule.take(server_round)
        return self._now.users

    def end(self) -> None:
        """The step is made: drop parameters that no device works on any more."""
        oldest = self._schedule.oldest()
        self.versions = {v: t for v, t in self.versions.items() if v >= oldest}

    def older(self, server_round: int, users: IntArray) -> tuple[Older, ...]:
        """Of these users those who started from older parameters, with these and their weight."""
        return tuple(self._older(server_round, users))

    def _older(self, server_round: int, users: IntArray) -> Iterator[Older]:
        if self._now is None or self._settings is None:
            return
        for version, all_users in self._now.groups().items():
            here = np.intersect1d(users, all_users)
            staleness = server_round - 1 - version
            if staleness and len(here):
                weight = self._settings.weight(staleness)
                yield Older(version, here, weight, self.versions[version])


def device_rounds(
    cfg: Config,
    strategy: RecStrategy,
    shards: Mapping[str, HelloReply],
    shared: Tensors,
    done: int,
    versions: Versions,
) -> DeviceRounds | None:
    """Of a run with ``devices``, after ``done`` rounds; None without.

    Raises:
        ServerError: for a buffer that the users cannot fill, or a node that does not say how many
            interactions its users have.

    """
    if not cfg.devices.simulated:
        return None
    activity_U = _activity(shards)
    samples = cfg.strategy.local_epochs * (1 + cfg.strategy.num_negatives)
    task = Task(_bytes(shared), _bytes(strategy.summed_template(shared)), samples * activity_U)
    fleet = Fleet(cfg.devices, cfg.seed, activity_U, task)
    settings = cfg.strategy.async_
    schedule: Schedule = (
        Synchronous(fleet, cfg.seed, cfg.federation.fraction)
        if settings is None
        else Asynchronous(fleet, cfg.seed, cfg.federation.fraction, settings)
    )
    return DeviceRounds(schedule, settings, done, versions)


def _activity(shards: Mapping[str, HelloReply]) -> IntArray:
    """Training interactions of each user, by global index."""
    activity_U = np.zeros(sum(len(hello.users) for hello in shards.values()), np.int64)
    for key, hello in shards.items():
        if hello.activity is None:
            raise ServerError(f"shard {key} does not say how many interactions its users have")
        activity_U[hello.users] = hello.activity
    return activity_U


def _bytes(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
