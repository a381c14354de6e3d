"""Messages of Flower's simulation handed to its workers at once.

In simulation a thread of Flower looks for new messages ten times a second, so that an exchange
of a few milliseconds takes a tenth of a second. The thread runs in the server's process and
works on two objects only, the link state and a queue; after a push the same two calls are
made here, for the nodes that messages went to. Whichever comes first delivers a message: the
state gives it out once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from queue import Queue
from typing import Any, Protocol

from flwr.app import Message

EXTRACTOR = "add_messages_to_queue"
"""Flower's function that the thread runs, with (state, queue, nodes, stop) as its arguments."""


class LinkState(Protocol):
    """What the thread asks Flower's link state for."""

    def get_message_ins(self, node_id: int, limit: int | None) -> list[Message]:
        """Give out messages to a node, each once."""
        ...


def hand_over(messages: Iterable[Message]) -> int:
    """Put pushed messages before the simulation's workers; returns how many.

    Does nothing, and Flower's thread delivers, where there is no simulation in this process or
    it has not begun yet.
    """
    found = _extractor()
    if found is None:
        return 0
    state, queue = found
    nodes = [message.metadata.dst_node_id for message in messages]
    ready = [ready for node in nodes for ready in state.get_message_ins(node_id=node, limit=1)]
    for message in ready:
        queue.put(message)
    return len(ready)


def _extractor() -> tuple[LinkState, Queue[Message]] | None:
    for thread in threading.enumerate():
        # Private to Python's Thread, and gone when the thread has ended.
        target: Any = getattr(thread, "_target", None)
        arguments: Any = getattr(thread, "_args", ())
        if getattr(target, "__name__", None) == EXTRACTOR and len(arguments) >= 2:
            state, queue, *_ = arguments
            if hasattr(state, "get_message_ins") and isinstance(queue, Queue):
                return state, queue
    return None
