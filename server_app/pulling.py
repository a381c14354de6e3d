"""Pulling replies from a SuperLink without being held up by one of them.

A node announces a reply before it uploads its content. If it dies in between, Flower's
``pull_messages`` waits for the content until the upload's session is over, three minutes later,
and holds back the replies of all other nodes that it took along. So it runs in a thread: while
one pull is stuck, others go on with the replies it did not take, and deadlines stay true.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from queue import Empty, SimpleQueue

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.superlink.grid.http_grid import HttpGrid

PATIENCE_S = 1.0
"""A pull that takes longer is left to itself."""
MAX_PULLS = 8
"""At once; each that is stuck holds one."""

Outcome = list[Message] | Exception


class Puller:
    """Pulls from a grid: in this thread from one in memory, in others from a SuperLink."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._apart = isinstance(grid, HttpGrid)
        self._running = 0
        self._outcomes: SimpleQueue[Outcome] = SimpleQueue()

    def pull(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to these messages, and to earlier ones asked for, that have arrived."""
        if not self._apart:
            return list(self._grid.pull_messages(message_ids))
        if self._running < MAX_PULLS:
            self._running += 1
            arguments = (list(message_ids),)
            threading.Thread(target=self._pull, args=arguments, daemon=True).start()
        return self._arrived()

    def _pull(self, message_ids: list[str]) -> None:
        try:
            self._outcomes.put(list(self._grid.pull_messages(message_ids)))
        except Exception as error:  # noqa: BLE001  raised where the replies are awaited
            self._outcomes.put(error)

    def _arrived(self) -> list[Message]:
        """What finished pulls brought; waits a while for the first of them."""
        found = list[Message]()
        patience = PATIENCE_S
        while True:
            try:
                outcome = self._outcomes.get(patience > 0, patience)
            except Empty:
                return found
            self._running -= 1
            if isinstance(outcome, Exception):
                raise outcome
            found += outcome
            patience = 0.0
