"""Collecting the usable replies of one exchange under the configured policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid

from conf.tree import FederationConfig
from server_app.errors import RoundError
from server_app.exchange import Courier, Delivery
from server_app.nodes import NodeDirectory
from strategies.hooks import Failure

WARNING = 30


class Keyed(Protocol):
    """Any reply that names its shard."""

    @property
    def shard_key(self) -> str:
        """Key of the shard that answers."""


Reply = TypeVar("Reply", bound=Keyed)
Ask = Callable[[frozenset[str]], Iterable[Message]]
"""Makes the messages for the shards still outstanding."""
Collect = Callable[[Iterable[Message]], tuple[list[Reply], list[Failure]]]
Check = Callable[[Reply], str | None]
"""What is wrong with a decoded reply; None when it is usable."""


@dataclass
class Gathered(Generic[Reply]):
    """Usable replies by ascending shard key, and what was wrong with the others."""

    replies: list[Reply] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Gatherer:
    """Asks shards, again where the policy says so, until enough users are accounted for."""

    def __init__(
        self, directory: NodeDirectory, courier: Courier, federation: FederationConfig
    ) -> None:
        self._directory = directory
        self._courier = courier
        self._policy = federation
        self.deadline_s = federation.deadline_s

    @property
    def grid(self) -> Grid:
        """The grid that messages go over."""
        return self._courier.grid

    def gather(
        self,
        what: str,
        users_of: Mapping[str, int],
        ask: Ask,
        collect: Collect[Reply],
        check: Check[Reply],
    ) -> Gathered[Reply]:
        """Gather the replies of the shards in ``users_of`` (number of users by shard key).

        Raises:
            RoundError: when fewer than ``min_share`` of the users are accounted for and the
                policy is to fail, or retries are used up, or there is no reply at all. The
                message holds the first node's own error text.

        """
        done: dict[str, Reply] = {}
        failures: list[str] = []
        policy = self._policy
        attempts = 1 + (policy.retries if policy.on_missing == "retry" else 0)
        for attempt in range(attempts):
            self._directory.refresh()
            outstanding = frozenset(users_of) - done.keys()
            delivery = self._courier.exchange(list(ask(outstanding)), self.deadline_s)
            usable, unusable = collect(delivery.replies)
            failures += self._describe(delivery, unusable)
            for reply in usable:
                problem = _misfit(reply, outstanding, done) or check(reply)
                if problem is None:
                    done[reply.shard_key] = reply
                else:
                    failures.append(f"shard {reply.shard_key!r}: rejected: {problem}")
            if self._enough(users_of, done):
                break
            log(WARNING, "%s, attempt %d of %d: %s", what, attempt + 1, attempts, _last(failures))
        else:
            self._give_up_unless_allowed(what, users_of, done, failures)
        return Gathered([done[key] for key in sorted(done)], failures)

    def _enough(self, users_of: Mapping[str, int], done: Mapping[str, object]) -> bool:
        arrived = sum(users_of[key] for key in done)
        return arrived >= self._policy.min_share * sum(users_of.values())

    def _give_up_unless_allowed(
        self,
        what: str,
        users_of: Mapping[str, int],
        done: Mapping[str, object],
        failures: Sequence[str],
    ) -> None:
        # Going on with no reply at all would end a run of failing clients as a success.
        if self._policy.on_missing == "continue" and done:
            return
        total = sum(users_of.values())
        missing = total - sum(users_of[key] for key in done)
        first = next((text for text in failures if "client error" in text), _last(failures))
        notes = [f"node {n} was not admitted: {why}" for n, why in self._directory.refused.items()]
        raise RoundError(
            f"{what}: {missing} of {total} users are missing (min_share="
            f"{self._policy.min_share:g}, on_missing={self._policy.on_missing}); "
            + "; ".join([first, *notes])
        )

    def _describe(self, delivery: Delivery, unusable: Iterable[Failure]) -> list[str]:
        place = self._place
        return [
            *(f"{place(delivery.node_of[f.message_id])}: {f.reason}" for f in unusable),
            *(f"{place(n)}: no reply before the deadline" for n in sorted(delivery.silent)),
            *(f"{place(n)}: not connected" for n in sorted(delivery.unreachable)),
        ]

    def _place(self, node_id: int) -> str:
        return f"shard {self._directory.shard_at(node_id)!r} (node {node_id})"


def _last(failures: Sequence[str]) -> str:
    return failures[-1] if failures else "no message was sent"


def _misfit(reply: Reply, outstanding: frozenset[str], done: Mapping[str, Reply]) -> str | None:
    if reply.shard_key not in outstanding:
        return "this shard was not asked"
    return "answered twice" if reply.shard_key in done else None
