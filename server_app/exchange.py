"""Sending messages and collecting replies before a deadline, with polling of our own.

Flower's ``send_and_receive`` sleeps 3 s between polls in deployment and silently returns
fewer replies at its timeout. Here the pause follows the time already waited, and whoever
is missing is named.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from server_app.pickup import hand_over

NUMBER_BYTES = 8
POLL_SHARE, POLL_MIN_S, POLL_MAX_S = 0.05, 0.002, 0.25


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


class Courier:
    """Exchanges messages over a grid, counts bytes, and drops replies that come too late."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.bytes_down = 0
        self.bytes_up = 0
        self.dropped_late = 0
        self._late: dict[str, int] = {}
        """Node by id of a message that was not answered in time."""

    def exchange(self, messages: Sequence[Message], deadline_s: float) -> Delivery:
        """Send ``messages`` and wait for their replies, ``deadline_s`` seconds at most."""
        messages = list(messages)
        started = time.monotonic()
        self._forget_the_gone()
        accepted = {i for i in self.grid.push_messages(messages) if i} if messages else set()
        hand_over(messages)
        node_of = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
        self.bytes_down += sum(content_bytes(m.content) for m in messages)
        waiting, replies = set(accepted), list[Message]()
        while waiting:
            arrived = self._pull(waiting)
            replies += arrived
            waited = time.monotonic() - started
            if not waiting or waited >= deadline_s:
                break
            if arrived:
                continue  # more may have come meanwhile
            time.sleep(min(max(POLL_SHARE * waited, POLL_MIN_S), POLL_MAX_S, deadline_s - waited))
        self._late |= {i: node_of[i] for i in waiting}
        return Delivery(
            replies=replies,
            node_of=node_of,
            silent=[node_of[i] for i in waiting],
            unreachable=[node for i, node in node_of.items() if i not in accepted],
        )

    def _pull(self, waiting: set[str]) -> list[Message]:
        """Take what has arrived off ``waiting``; late replies are fetched only to be dropped."""
        arrived = []
        for reply in self.grid.pull_messages(waiting | self._late.keys()):
            origin = reply.metadata.reply_to_message_id
            if reply.has_content():
                self.bytes_up += content_bytes(reply.content)
            if origin in waiting:
                waiting.discard(origin)
                arrived.append(reply)
            elif origin in self._late:
                del self._late[origin]
                self.dropped_late += 1
        return arrived

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
