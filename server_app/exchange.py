"""Sending messages and collecting replies before a deadline, with polling of our own.

Flower's ``send_and_receive`` sleeps 3 s between polls in deployment and silently returns
fewer replies at its timeout. Here the pause follows the time already waited, and whoever
is missing is named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.superlink.grid.http_grid import HttpGrid

from server_app.pickup import hand_over
from server_app.pulling import Puller
from strategies.bundle import bundled, unbundled
from strategies.codec import WireError

NUMBER_BYTES = 8
POLL_SHARE, POLL_MIN_S, POLL_MAX_S = 0.05, 0.002, 0.25
WATCH_S = 2.0
"""How often nodes that are waited for are looked for under another id."""

Returned = Callable[[Sequence[int]], Mapping[int, Message]]
"""For nodes still waited for: by id of one that came back under another, what to send there."""


@dataclass(frozen=True)
class Delivery:
    """Outcome of one exchange."""

    replies: list[Message]
    node_of: dict[str, int]
    """Node id by id of the message sent; an error reply's own source may be the SuperLink."""
    silent: list[int]
    """Nodes that were sent a message and did not answer in time."""
    unreachable: list[int]
    """Nodes for which the grid took no message."""


@dataclass(frozen=True)
class _Sent:
    """Messages of an exchange: node by message id, ids waited for, nodes not reached."""

    node_of: dict[str, int]
    waiting: set[str]
    unreachable: list[int]


class Courier:
    """Exchanges messages over a grid, counts bytes, and drops replies that come too late."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._puller = Puller(grid)
        self._bundles = isinstance(grid, HttpGrid)
        self.bytes_down = 0
        self.bytes_up = 0
        self.dropped_late = 0
        self._late: dict[str, int] = {}
        """Node by id of a message that was not answered in time."""
        self._unclaimed: dict[str, Message] = {}
        """Replies to another exchange than the one that pulled them: a greeting inside it."""

    def exchange(
        self, messages: Sequence[Message], deadline_s: float, returned: Returned | None = None
    ) -> Delivery:
        """Send ``messages`` and wait for their replies, ``deadline_s`` seconds at most.

        ``returned`` is asked now and then; what it gives is sent in place of the message to
        the node that went away, without waiting until Flower notices.
        """
        started = watched = time.monotonic()
        self._forget_the_gone()
        sent = _Sent({}, set(), [])
        self._send(list(messages), sent)
        replies = list[Message]()
        while sent.waiting:
            arrived = self._pull(sent.waiting)
            replies += arrived
            now = time.monotonic()
            waited = now - started
            if not sent.waiting or waited >= deadline_s:
                break
            if returned is not None and now - watched >= WATCH_S:
                self._replace(sent, returned)
                watched = time.monotonic()
            elif not arrived:  # else more may have come meanwhile
                pause = min(max(POLL_SHARE * waited, POLL_MIN_S), POLL_MAX_S)
                time.sleep(min(pause, deadline_s - waited))
        self._late |= {i: sent.node_of[i] for i in sent.waiting}
        silent = [sent.node_of[i] for i in sent.waiting]
        return Delivery(replies, sent.node_of, silent, sent.unreachable)

    def _send(self, messages: list[Message], sent: _Sent) -> None:
        self.bytes_down += sum(content_bytes(m.content) for m in messages)
        if self._bundles:
            for message in messages:
                message.content = bundled(message.content)
        accepted = {i for i in self.grid.push_messages(messages) if i} if messages else set()
        hand_over(messages)
        for message in messages:
            origin, node = message.metadata.message_id, message.metadata.dst_node_id
            sent.node_of[origin] = node
            if origin in accepted:
                sent.waiting.add(origin)
            else:
                sent.unreachable.append(node)

    def _replace(self, sent: _Sent, returned: Returned) -> None:
        message_of = {sent.node_of[i]: i for i in sent.waiting}
        for old_node, message in returned(list(message_of)).items():
            origin = message_of[old_node]
            sent.waiting.discard(origin)
            self._late[origin] = old_node
            self._send([message], sent)

    def _pull(self, waiting: set[str]) -> list[Message]:
        """Take what has arrived off ``waiting``; late replies are fetched only to be dropped."""
        for reply in self._puller.pull(waiting | self._late.keys()):
            origin = reply.metadata.reply_to_message_id
            if reply.has_content():
                with suppress(WireError):  # left as it is, it will be refused by what reads it
                    reply.content = unbundled(reply.content)
                self.bytes_up += content_bytes(reply.content)
            if origin in self._late:
                del self._late[origin]
                self.dropped_late += 1
            else:
                self._unclaimed.setdefault(origin, reply)
        arrived = sorted(waiting & self._unclaimed.keys())
        waiting.difference_update(arrived)
        return [self._unclaimed.pop(origin) for origin in arrived]

    def _forget_the_gone(self) -> None:
        """Await nothing more from nodes that are gone; a node that returns has another id."""
        if self._late:
            online = set(self.grid.get_node_ids())
            self._late = {i: node for i, node in self._late.items() if node in online}


def content_bytes(content: RecordDict) -> int:
    """Payload of a message in bytes: names, values and array data, without Flower's framing.

    Flower's own ``count_bytes`` raises for an empty text or an empty list.
    """
    total = 0
    for record in content.values():
        if isinstance(record, ArrayRecord):
            total += sum(len(name) + len(array.data) for name, array in record.items())
        else:
            total += sum(len(name) + _value_bytes(value) for name, value in record.items())
    return total


def _value_bytes(value: object) -> int:
    if isinstance(value, list):
        return sum(_value_bytes(element) for element in value)
    return len(value) if isinstance(value, str | bytes) else NUMBER_BYTES
