"""Pulling replies from a SuperLink without being held up by one of them.

A node announces a reply before it uploads its content. If it dies in between, Flower's
``pull_messages`` waits for the content until the upload's session is over, three minutes later,
and holds back the replies of all other nodes that it took along. So it runs in a thread: while
one pull is stuck, others go on with the replies it did not take, and deadlines stay true.

A reply is given out once: to another pull Flower says that the message is unavailable. While a
pull that may have the reply is under way, that means nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from queue import Empty, SimpleQueue

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.superlink.grid.http_grid import HttpGrid

PATIENCE_S = 5.0
"""A pull that takes longer is left to itself."""
MAX_PULLS = 8
"""At once; each that is stuck holds one."""

Ids = frozenset[str]
Outcome = tuple[Ids, list[Message] | Exception]
"""What a pull asked for, and what came of it."""


class Puller:
    """Pulls from a grid: in this thread from one in memory, in others from a SuperLink."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._apart = isinstance(grid, HttpGrid)
        self._running = list[Ids]()
        self._outcomes: SimpleQueue[Outcome] = SimpleQueue()

    def pull(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to these messages, and to earlier ones asked for, that have arrived."""
        if not self._apart:
            return list(self._grid.pull_messages(message_ids))
        if len(self._running) < MAX_PULLS:
            asked = frozenset(message_ids)
            self._running.append(asked)
            threading.Thread(target=self._pull, args=(asked,), daemon=True).start()
        return self._arrived()

    def _pull(self, asked: Ids) -> None:
        try:
            self._outcomes.put((asked, list(self._grid.pull_messages(sorted(asked)))))
        except Exception as error:  # noqa: BLE001  raised where the replies are awaited
            self._outcomes.put((asked, error))

    def _arrived(self) -> list[Message]:
        """What finished pulls brought; waits a while for the first of them."""
        found = list[Message]()
        patience = PATIENCE_S
        while True:
            try:
                asked, outcome = self._outcomes.get(patience > 0, patience)
            except Empty:
                return found
            self._running.remove(asked)
            if isinstance(outcome, Exception):
                raise outcome
            found += [reply for reply in outcome if not self._may_be_elsewhere(reply)]
            patience = 0.0

    def _may_be_elsewhere(self, reply: Message) -> bool:
        """Whether a reply that is unavailable may be in the hands of a pull that still runs."""
        if not (reply.has_error() and reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE):
            return False
        return any(reply.metadata.reply_to_message_id in asked for asked in self._running)
