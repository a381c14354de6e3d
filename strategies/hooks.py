"""The Flower half of every strategy: configure, aggregate and start, written once.

A strategy is a real ``flwr.serverapp.strategy.Strategy``. Who takes part in a round, and
what happens when replies are missing, is the round loop's business: the loop is attached
as a :class:`Session` (see ``server_app.rounds``) and ``start`` delegates to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from logging import INFO
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from models.types import IndividualUpdates, Tensors, Update
from strategies import wire
from strategies.by_user import joined
from strategies.codec import WireError, from_arrays, to_arrays
from strategies.defence import Combines, Scene, Verdict
from strategies.individual import gathered
from strategies.messages import Downlink, EvaluateReply, EvaluateRequest, Uplink

if TYPE_CHECKING:
    from strategies.base import RecStrategy

Reply = TypeVar("Reply", Uplink, EvaluateReply)


@dataclass(frozen=True)
class Failure:
    """A reply that cannot be used: which message it answers and why."""

    message_id: str
    node_id: int
    reason: str
    code: int | None = None
    """Flower's code of an error reply; None for a reply with content that was rejected."""


class Session(Protocol):
    """What a round loop supplies to the strategy it drives."""

    def plan_train(self, server_round: int) -> Mapping[int, Downlink]:
        """The training request of each node id; ``shared`` is filled in by the strategy."""

    def plan_evaluate(self, server_round: int) -> Mapping[int, EvaluateRequest]:
        """The evaluation request of each node id; ``shared`` likewise unless not empty."""

    def run(self, strategy: RecStrategy, grid: Grid, num_rounds: int, timeout: float) -> Result:
        """Run the whole training."""


class FlowerHooks(Strategy):
    """Flower's five hooks and ``start``, over typed messages."""

    def __init__(self) -> None:
        self.shared: Tensors = {}
        self.server_state: Tensors = {}
        self.session: Session | None = None
        self.on_sum: Callable[[Update], Update] | None = None
        """What is done to a round's sum before the server's step: noise."""
        self.defence: Combines | None = None
        """How users' updates are combined where nodes send each by itself."""
        self.verdict: Verdict | None = None
        """Of the defence, on the last step."""

    # supplied by RecStrategy
    needs_individual_updates: ClassVar[bool]
    init_server_state: Callable[[Tensors], Tensors]
    summed_template: Callable[[Tensors], Tensors]
    individual_template: Callable[[Tensors], Tensors]
    combined: Callable[[Sequence[Update], Tensors], Update]
    server_update: Callable[[Tensors, Update, Tensors], tuple[Tensors, Tensors]]
    individual_server_update: Callable[
        [Tensors, IndividualUpdates, Tensors], tuple[Tensors, Tensors]
    ]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One request a node that hosts users of the round's cohort."""
        plan = self._session().plan_train(server_round)
        return [
            _message(wire.encode_downlink(request, arrays), node, MessageType.TRAIN, server_round)
            for node, request in plan.items()
        ]

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One request a node; empty when the round is not evaluated."""
        plan = self._session().plan_evaluate(server_round)
        return [
            _message(
                wire.encode_evaluate(request, None if request.shared else arrays),
                node,
                MessageType.EVALUATE,
                server_round,
            )
            for node, request in plan.items()
        ]

    def collect_train(self, replies: Iterable[Message]) -> tuple[list[Uplink], list[Failure]]:
        """Usable uplinks in order of their shard keys, and what was wrong with the others."""
        if self.defence is not None:
            shared = self.shared
            return _collect(replies, lambda content: wire.decode_uplink(content, {}, None, shared))
        single = self.individual_template(self.shared) if self.needs_individual_updates else None
        summed = self.summed_template(self.shared)
        return _collect(replies, lambda content: wire.decode_uplink(content, summed, single))

    def collect_evaluate(
        self, replies: Iterable[Message]
    ) -> tuple[list[EvaluateReply], list[Failure]]:
        """Usable evaluation replies in order of their shard keys, and the failures."""
        return _collect(replies, wire.decode_evaluate_reply)

    def apply(self, uplinks: Iterable[Uplink], server_round: int = 0) -> None:
        """Make the server's step from the uplinks, added in the given order."""
        shared, state, uplinks = self.shared, self.server_state, list(uplinks)
        if self.defence is not None:
            scene = Scene(self, shared, state, server_round)  # type: ignore[arg-type]
            by_user = joined([u.by_user for u in uplinks if u.by_user is not None])
            self.verdict = self.defence.combined(by_user, scene)
            stepped = self.server_update(shared, self.verdict.update, state)
        elif self.needs_individual_updates:
            parts = [u.individual for u in uplinks if u.individual is not None]
            stepped = self.individual_server_update(shared, gathered(parts), state)
        else:
            summed = self.combined([uplink.update for uplink in uplinks], shared)
            summed = summed if self.on_sum is None else self.on_sum(summed)
            stepped = self.server_update(shared, summed, state)
        self.shared, self.server_state = stepped

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Flower's hook: the new shared parameters, or None when no reply was usable."""
        uplinks, _ = self.collect_train(replies)
        if not uplinks:
            return None, None
        self.apply(uplinks, server_round)
        users = sum(uplink.num_users for uplink in uplinks)
        means = train_means(uplinks)
        return to_arrays(self.shared), MetricRecord({"num-users": users, **means})

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Flower's hook: means of the metrics over all users that replied."""
        usable, _ = self.collect_evaluate(replies)
        means = mean_metrics(usable)
        return MetricRecord(dict(means)) if means else None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run ``num_rounds`` rounds through the attached session.

        Raises:
            RuntimeError: when no session is attached.
            ValueError: for ``evaluate_fn``: the server has no data to evaluate on.

        """
        if evaluate_fn is not None:
            raise ValueError("evaluate_fn is not supported: held-out items are on the nodes")
        self.set_shared(from_arrays(initial_arrays))
        self.summary()
        return self._session().run(self, grid, num_rounds, timeout)  # type: ignore[arg-type]

    def set_shared(self, shared: Tensors, server_state: Tensors | None = None) -> None:
        """Start from these shared parameters, with fresh or given server state."""
        self.shared = shared
        self.server_state = self.init_server_state(shared) if server_state is None else server_state

    def summary(self) -> None:
        """Log what is trained."""
        floats = sum(t.numel() for t in self.shared.values())
        log(INFO, "%s: %d shared tensors, %d values", type(self).__name__, len(self.shared), floats)

    def _session(self) -> Session:
        if self.session is None:
            raise RuntimeError("attach a session (server_app.rounds) before starting a strategy")
        return self.session


def train_means(uplinks: Sequence[Uplink]) -> dict[str, float]:
    """Means over the users of all uplinks: sums of sums by the number of users."""
    users = sum(uplink.num_users for uplink in uplinks)
    names = sorted({name for uplink in uplinks for name in uplink.metrics})
    return {n: sum(u.metrics.get(n, 0.0) for u in uplinks) / users for n in names}


def mean_metrics(replies: Iterable[EvaluateReply]) -> dict[str, float]:
    """Means over users: sums of sums divided by sums of counts."""
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for reply in replies:
        for name, value in reply.metrics.items():
            sums[name] = sums.get(name, 0.0) + value
            counts[name] = counts.get(name, 0.0) + reply.counts.get(name, 0.0)
    return {name: sums[name] / counts[name] for name in sorted(sums) if counts[name] > 0}


def error_of(reply: Message) -> Failure:
    """An error reply as a failure."""
    meta, error = reply.metadata, reply.error
    reason = f"client error: {error.reason}"
    return Failure(meta.reply_to_message_id, meta.src_node_id, reason, error.code)


def _message(content: RecordDict, node: int, kind: str, server_round: int) -> Message:
    return Message(content=content, message_type=kind, dst_node_id=node, group_id=str(server_round))


def _collect(
    replies: Iterable[Message], decode: Callable[[RecordDict], Reply]
) -> tuple[list[Reply], list[Failure]]:
    usable: list[Reply] = []
    failures: list[Failure] = []
    for reply in replies:
        where = (reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
        if reply.has_error():
            failures.append(error_of(reply))
            continue
        try:
            usable.append(decode(reply.content))
        except WireError as error:
            failures.append(Failure(*where, f"rejected: {error}"))
    return sorted(usable, key=lambda u: u.shard_key), failures
