"""Training exchanges and the server's step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from flwr.app import ConfigRecord, Message

from conf.tree import Config
from models.tables import is_finite
from models.types import IntArray, Tensors
from server_app.devices.rounds import DeviceRounds
from server_app.errors import RoundError
from server_app.gather import Ask, Gatherer
from server_app.nodes import NodeDirectory
from server_app.poisoning import of_round
from server_app.privacy import Privacy
from server_app.sampling import sample_cohort
from server_app.secagg import SecureSums
from server_app.secagg_replies import summed_uplink
from strategies.base import RecStrategy
from strategies.codec import to_arrays
from strategies.messages import Downlink, EvaluateReply, Header, Uplink
from strategies.secagg.protocol import train_sum


@dataclass(frozen=True)
class Folded:
    """The evaluation of a round that rides on the training messages of the next."""

    kind: Literal["sampled", "full"]
    ranked: Mapping[str, IntArray]
    """Ranked users by shard where not all of them are."""
    check: Callable[[EvaluateReply], str | None]


class Trainer:
    """Trains one cohort a call; the round loop asks it for each node's request."""

    def __init__(
        self,
        cfg: Config,
        directory: NodeDirectory,
        gatherer: Gatherer,
        header: Header,
        secure: SecureSums | None = None,
    ) -> None:
        self._cfg = cfg
        self._secure = secure
        self.node_seconds: tuple[float, ...] = ()
        """How long each node of the last exchange worked."""
        self._directory = directory
        self._gatherer = gatherer
        self._header = header
        self.privacy: Privacy | None = None
        """The run's mechanism, where it has one."""
        self.devices: DeviceRounds | None = None
        """Who takes part, where devices decide it."""
        self._requests: dict[str, Downlink] = {}
        self._outstanding: frozenset[str] = frozenset()
        self._arrived: tuple[str, ...] = ()
        """Shards whose updates are in the last round's sum."""

    def plan(self) -> Mapping[int, Downlink]:
        """The request of each node that hosts outstanding users of the cohort."""
        return {self._directory.node(k): self._requests[k] for k in sorted(self._outstanding)}

    @property
    def asked(self) -> dict[str, IntArray]:
        """By shard: the users of the last round's cohort whom it was asked to train."""
        users = {key: request.users for key, request in self._requests.items()}
        return {key: found for key, found in users.items() if found is not None}

    def train(
        self,
        strategy: RecStrategy,
        server_round: int,
        keep_rounds: tuple[int, ...],
        folded: Folded | None = None,
    ) -> list[Uplink]:
        """Have the round's cohort trained; returns the usable uplinks by ascending shard key.

        ``folded``: the evaluation of the round before, which the same messages ask for.

        Raises:
            RoundError: when replies are missing beyond the policy.

        """
        directory = self._directory
        directory.refresh()  # a shard that joins takes part at once
        users = directory.users[self._places(server_round, strategy.shared)]
        parts, personal = directory.split(users), strategy.downlinks(users)
        self._requests = {
            key: self._request(personal, server_round, keep_rounds, users, folded, key)
            for key, users in parts.items()
        }
        arrays = to_arrays(strategy.shared)  # encoded once for all nodes

        def ask(outstanding: frozenset[str]) -> Iterable[Message]:
            self._outstanding = outstanding
            return strategy.configure_train(
                server_round, arrays, ConfigRecord(), self._gatherer.grid
            )

        users_of = {key: len(users) for key, users in parts.items()}
        try:
            if self._secure is not None:
                return self._secure_sum(strategy, server_round, users_of, ask)
            uplinks = self._gatherer.gather(
                f"round {server_round}",
                users_of,
                ask,
                strategy.collect_train,
                lambda uplink: _problem(uplink, server_round, parts, folded),
            )
        finally:
            self._outstanding = frozenset()
        self._arrived = tuple(uplink.shard_key for uplink in uplinks)
        directory.trained |= dict.fromkeys(self._arrived, server_round)
        self.node_seconds = tuple(uplink.seconds for uplink in uplinks)
        return uplinks

    def _secure_sum(
        self, strategy: RecStrategy, server_round: int, users_of: Mapping[str, int], ask: Ask
    ) -> list[Uplink]:
        """One uplink: that of all nodes that stayed to the end, together."""
        assert self._secure is not None
        summed = self._secure.collect(train_sum(server_round), users_of, ask)
        self._arrived = tuple(summed.survivors)
        self._directory.trained |= dict.fromkeys(self._arrived, server_round)
        self.node_seconds = summed.seconds
        template = strategy.summed_template(strategy.shared)
        return [summed_uplink(summed, server_round, template)]

    def step(self, strategy: RecStrategy, server_round: int, uplinks: Sequence[Uplink]) -> None:
        """Make the server's step; the parameters stay as they were unless it is finite.

        Raises:
            RoundError: naming the parameter that would not be finite, or why there is no step.

        """
        before = strategy.shared, strategy.server_state
        if self.privacy is not None:
            self.privacy.attach(strategy, server_round)
        try:
            strategy.apply(uplinks, server_round)
        except ValueError as error:
            raise RoundError(f"round {server_round}: the server's step: {error}") from error
        for name, tensor in (strategy.shared | strategy.server_state).items():
            if not is_finite(tensor):
                strategy.shared, strategy.server_state = before
                raise RoundError(
                    f"round {server_round}: the server's step makes {name!r} infinite or NaN; "
                    "lower strategy.server_lr"
                )
        if self.devices is not None:
            self.devices.end()

    def _places(self, server_round: int, shared: Tensors) -> IntArray:
        """The cohort, as places among all users."""
        fraction, num_users = self._cfg.federation.fraction, self._directory.num_users
        if self.privacy is not None:
            self.privacy.begin(server_round, num_users)
        if self.devices is not None:
            return self.devices.begin(server_round, shared)
        if self.privacy is None:
            return sample_cohort(self._cfg.seed, server_round, num_users, fraction)
        return self.privacy.cohort(server_round, num_users)

    def poisoning(self, strategy: RecStrategy, server_round: int) -> dict[str, float] | None:
        """What the round's record says of malicious updates (``server_app.poisoning``)."""
        asked = self.asked
        parts = [asked[key] for key in self._arrived if key in asked]
        users = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        return of_round(self._cfg, strategy, server_round, users, self._directory.num_users)

    def _request(
        self,
        personal: Mapping[int, Tensors],
        server_round: int,
        keep_rounds: tuple[int, ...],
        users: IntArray,
        folded: Folded | None,
        key: str,
    ) -> Downlink:
        return Downlink(
            header=self._header,
            round=server_round,
            base_round=server_round - 1,
            keep_rounds=keep_rounds,
            users=users,
            shared={},
            personal=own_of(users, personal),
            evaluate="" if folded is None else folded.kind,
            ranked=None if folded is None else folded.ranked.get(key),
            noise_std=0.0 if self.privacy is None else self.privacy.users_std(),
            older=() if self.devices is None else self.devices.older(server_round, users),
        )


def own_of(users: IntArray, personal: Mapping[int, Tensors]) -> dict[int, Tensors]:
    """The personal tensors of the users that have some."""
    return {int(user): personal[int(user)] for user in users if int(user) in personal}


def _problem(
    uplink: Uplink, server_round: int, parts: Mapping[str, IntArray], folded: Folded | None
) -> str | None:
    if uplink.round != server_round:
        return f"answers round {uplink.round} instead of {server_round}"
    expected = len(parts[uplink.shard_key])
    if uplink.num_users > expected:  # fewer where some were forgotten meanwhile
        return f"trained {uplink.num_users} users instead of {expected}"
    for single in (uplink.individual, uplink.by_user):
        if single is None:
            continue
        foreign = np.setdiff1d(single.users_U, parts[uplink.shard_key])
        if len(foreign):
            return f"has an update of user {foreign[0]}, who was not asked"
    return None if folded is None else _evaluation_problem(uplink, folded)


def _evaluation_problem(uplink: Uplink, folded: Folded) -> str | None:
    reply = uplink.evaluation
    if reply is None:
        return "has no evaluation, which was asked for"
    if reply.shard_key != uplink.shard_key:
        return f"has an evaluation of shard {reply.shard_key!r}"
    return folded.check(reply)
