"""Collecting the usable replies of one exchange under the configured policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Protocol, TypeVar

from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid

from conf.tree import FederationConfig
from server_app.errors import RoundError
from server_app.exchange import Courier, Delivery, content_bytes
from server_app.failures import FailureLog, NodeFailure
from server_app.greeting import GONE
from server_app.nodes import NodeDirectory
from strategies.hooks import Failure

WARNING = 30
REJOIN_POLL_S = 0.5
MAX_REPLY_BYTES = 1 << 20
"""Of a reply, before the size of the shared parameters is known."""


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


class Gatherer:
    """Asks shards, again where the policy says so, until enough users are accounted for."""

    def __init__(
        self, directory: NodeDirectory, courier: Courier, federation: FederationConfig
    ) -> None:
        self._directory = directory
        self._courier = courier
        self._policy = federation
        self.deadline_s = federation.deadline_s
        self.reply_limit = MAX_REPLY_BYTES
        """Bytes of the largest reply that is looked at."""
        self.failures = FailureLog()
        """What went wrong in the exchanges so far; the round loop takes it."""

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
    ) -> list[Reply]:
        """The usable replies of the shards in ``users_of`` (users by shard key), by shard key.

        Every failure is logged once, and counted in ``failures``.

        Raises:
            RoundError: when fewer than ``min_share`` of the users are accounted for and the
                policy is to fail, or retries are used up, or there is no reply at all. The
                message holds the first failing client's own error text.

        """
        done: dict[str, Reply] = {}
        failures: list[NodeFailure] = []
        policy = self._policy
        attempts = 1 + (policy.retries if policy.on_missing == "retry" else 0)
        for attempt in range(attempts):
            outstanding = frozenset(users_of) - done.keys()
            self._directory.refresh()
            if attempt:
                self._await_return(outstanding)
            replies, failed = self._asked(outstanding, ask, collect, check)
            done |= replies
            for failure in failed:
                log(WARNING, "%s, attempt %d of %d: %s", what, attempt + 1, attempts, failure)
            failures += failed
            if self._enough(users_of, done):
                break
        else:
            self._give_up_unless_allowed(what, users_of, done, failures)
        self.failures.add(failures, frozenset(users_of) - done.keys())
        return [done[key] for key in sorted(done)]

    def once(
        self, shards: frozenset[str], ask: Ask, collect: Collect[Reply], check: Check[Reply]
    ) -> tuple[dict[str, Reply], list[NodeFailure]]:
        """Ask these shards once; usable replies by shard key, and what went wrong elsewhere."""
        self._directory.refresh()
        return self._asked(shards, ask, collect, check)

    def await_return(self, shards: frozenset[str]) -> None:
        """Give nodes that went away their time to come back."""
        self._directory.refresh()
        self._await_return(shards)

    def _asked(
        self, shards: frozenset[str], ask: Ask, collect: Collect[Reply], check: Check[Reply]
    ) -> tuple[dict[str, Reply], list[NodeFailure]]:
        delivery = self._courier.exchange(
            list(ask(shards)), self.deadline_s, lambda nodes: self._moved(nodes, ask)
        )
        return self._sort_out(delivery, collect, check)

    def _moved(self, waited_for: Sequence[int], ask: Ask) -> dict[int, Message]:
        """By node that is waited for and whose shard is on another now: the request for that."""
        shards = {self._directory.shard_at(node): node for node in waited_for}
        self._directory.refresh()
        moved = {k: node for k, node in shards.items() if self._directory.node(k) != node}
        messages = list(ask(frozenset(moved))) if moved else []
        return {moved[self._directory.shard_at(m.metadata.dst_node_id)]: m for m in messages}

    def _await_return(self, shards: frozenset[str]) -> None:
        """Give nodes that went away ``rejoin_s`` to come back before they are asked again."""
        deadline = time.monotonic() + self._policy.rejoin_s
        while time.monotonic() < deadline:
            online = set(self.grid.get_node_ids())
            if all(self._directory.node(key) in online for key in shards):
                return
            time.sleep(REJOIN_POLL_S)
            self._directory.refresh()

    def _sort_out(
        self, delivery: Delivery, collect: Collect[Reply], check: Check[Reply]
    ) -> tuple[dict[str, Reply], list[NodeFailure]]:
        """Usable replies by shard key, and the failures of the other nodes by shard key."""
        usable: dict[str, Reply] = {}
        failed = [self._failure(n, "no reply before the deadline") for n in delivery.silent]
        failed += [self._failure(n, "not connected") for n in delivery.unreachable]
        for message in delivery.replies:
            node_id = delivery.node_of[message.metadata.reply_to_message_id]
            key = self._directory.shard_at(node_id)
            if message.has_content() and content_bytes(message.content) > self.reply_limit:
                failed.append(self._oversized(node_id, message))
                continue
            replies, unusable = collect([message])
            failed += [self._failure(node_id, f.reason, f) for f in unusable]
            for reply in replies:
                problem = _misfit(reply, key) or check(reply)
                if problem is None:
                    usable[key] = reply
                else:
                    rejected = NodeFailure(key, node_id, f"rejected: {problem}", by_client=True)
                    failed.append(rejected)
        return usable, sorted(failed, key=lambda failure: failure.shard_key)

    def _oversized(self, node_id: int, message: Message) -> NodeFailure:
        size = content_bytes(message.content)
        reason = f"rejected: {size} bytes, more than the {self.reply_limit} that any reply needs"
        return NodeFailure(self._directory.shard_at(node_id), node_id, reason, by_client=True)

    def _failure(self, node_id: int, reason: str, found: Failure | None = None) -> NodeFailure:
        by_client = found is not None and found.code not in GONE
        return NodeFailure(self._directory.shard_at(node_id), node_id, reason, by_client)

    def _enough(self, users_of: Mapping[str, int], done: Mapping[str, object]) -> bool:
        arrived = sum(users_of[key] for key in done)
        # Exact in decimal: 7 of 100 users are a share of 0.07, which binary floats deny.
        return arrived >= Fraction(str(self._policy.min_share)) * sum(users_of.values())

    def _give_up_unless_allowed(
        self,
        what: str,
        users_of: Mapping[str, int],
        done: Mapping[str, object],
        failures: Sequence[NodeFailure],
    ) -> None:
        # Going on with no reply at all would end a run of failing clients as a success.
        if self._policy.on_missing == "continue" and done:
            return
        total = sum(users_of.values())
        missing = total - sum(users_of[key] for key in done)
        notes = [f"node {n} was not admitted: {why}" for n, why in self._directory.refused.items()]
        raise RoundError(
            f"{what}: {missing} of {total} users are missing (min_share="
            f"{self._policy.min_share:g}, on_missing={self._policy.on_missing}); "
            + "; ".join([_reason(failures), *notes])
        )


def _reason(failures: Sequence[NodeFailure]) -> str:
    """The first failing client's words, which explain more than an absent node."""
    first = next((f for f in failures if f.by_client), failures[-1] if failures else None)
    return "no message was sent" if first is None else str(first)


def _misfit(reply: Keyed, shard_key: str) -> str | None:
    if reply.shard_key == shard_key:
        return None
    return f"answers for shard {reply.shard_key!r}"
