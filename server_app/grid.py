"""An in-process grid: N nodes that call the ClientApp directly, without Ray or a SuperLink.

Like Flower's simulation it gives every node a ``Context`` with ``partition-id`` and
``num-partitions``, answers with an error message where a client raises, and shares no
mutable record between server and nodes.
"""

from __future__ import annotations

import copy
import secrets
import traceback
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import numpy as np
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from client_app.app import app as default_client_app

SERVER_NODE_ID = 1
"""Flower's id of the SuperLink, the source of every request."""


class LocalGrid(Grid):
    """Runs waiting messages at a pull, in the order sent or in a shuffled one.

    A pull begins as many as there are ``workers`` to spare, each in a thread, and waits for the
    first reply; one worker is the caller's own thread. Working at the pull keeps deadlines
    meaningful: a node that has not had its turn when the server stops waiting is late, and its
    reply comes with a later pull. A node works on one message at a time.
    """

    def __init__(
        self,
        num_nodes: int,
        client_app: ClientApp | None = None,
        shuffle_seed: int | None = None,
        workers: int = 1,
        node_configs: Sequence[Mapping[str, bool | int | float | str]] | None = None,
    ) -> None:
        """``node_configs``: of each node in place of its number (nodes with data of their own)."""
        self.workers = workers
        self._pool = ThreadPoolExecutor(workers, "node") if workers > 1 else None
        self._running: dict[Future[Message], Message] = {}
        self._done: dict[str, Message] = {}
        """Replies nobody has asked for yet, by id of the message they answer."""
        self._client_app = default_client_app if client_app is None else client_app
        self._order = None if shuffle_seed is None else np.random.default_rng(shuffle_seed)
        self._run = Run.create_empty(run_id=secrets.randbits(63))
        self._waiting: dict[str, Message] = {}
        numbers = ({"partition-id": i, "num-partitions": num_nodes} for i in range(num_nodes))
        self.contexts = dict(self._context(c) for c in node_configs or numbers)
        """State of each node by node id. Ids are random, as Flower's are."""
        _identify(self._run.run_id)

    # ---- Grid ----------------------------------------------------------------------------
    def set_run(self, run: Run) -> None:
        """Set the run that messages belong to."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that messages belong to."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message; the ``Message`` constructor does the same."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Ids of all nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Queue messages; one to an unknown node is not taken and gets no id back."""
        accepted = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
            if message.metadata.dst_node_id in self.contexts:
                self._waiting[message.metadata.message_id] = message
                accepted.append(message.metadata.message_id)
        return accepted

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Run waiting messages among ``message_ids`` until there is a reply; returns all there are.

        An empty answer means that none of the messages is left.
        """
        wanted = set(message_ids)
        while self._begin(wanted) and not self._done.keys() & wanted:
            done, _ = wait(self._running, return_when=FIRST_COMPLETED)
            for future in done:
                self._done[self._running.pop(future).metadata.message_id] = future.result()
        return [self._done.pop(i) for i in list(self._done) if i in wanted]

    def _begin(self, wanted: set[str]) -> bool:
        """Give idle workers messages; whether any message is being worked on by another thread."""
        while len(self._running) < self.workers and (message := self._next(wanted)):
            if self._pool is None:
                self._done[message.metadata.message_id] = self._handle(message)
                break
            self._running[self._pool.submit(self._handle, message)] = message
        return bool(self._running)

    def _next(self, wanted: set[str]) -> Message | None:
        busy = {message.metadata.dst_node_id for message in self._running.values()}
        waiting = self._waiting.items()
        ready = [i for i, m in waiting if i in wanted and m.metadata.dst_node_id not in busy]
        if not ready:
            return None
        turn = 0 if self._order is None else int(self._order.integers(len(ready)))
        return self._waiting.pop(ready[turn])

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return all replies; every node has its turn."""
        waiting, replies = set(self.push_messages(messages)), list[Message]()
        while waiting:
            for reply in self.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                replies.append(reply)
        return replies

    # ---- nodes ---------------------------------------------------------------------------
    def restart_node(self, node_id: int) -> int:
        """Give a node a new id and an empty Flower state, as a restarted SuperNode has."""
        old = self.contexts.pop(node_id)
        new_id, context = self._context(old.node_config)
        self.contexts[new_id] = context
        return new_id

    def _handle(self, message: Message) -> Message:
        context = self.contexts.get(message.metadata.dst_node_id)
        if context is None:
            gone = Error(code=ErrorCode.NODE_UNAVAILABLE, reason="the node is not connected")
            return Message(gone, reply_to=message)
        request = copy.copy(message)
        request.content = copied(message.content)
        try:
            reply = self._client_app(request, context)
        except Exception as error:  # noqa: BLE001  a client's error is an answer, as in Flower
            text = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
            failed = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=text)
            return Message(failed, reply_to=message)
        if reply.has_content():
            return Message(copied(reply.content), reply_to=message)
        return reply

    def _context(self, node_config: Mapping[str, bool | int | float | str]) -> tuple[int, Context]:
        node_id = secrets.randbits(62) + 2
        context = Context(
            run_id=self._run.run_id,
            node_id=node_id,
            node_config=dict(node_config),
            state=RecordDict(),
            run_config={},
        )
        return node_id, context


def copied(content: RecordDict) -> RecordDict:
    """The same records, with nothing mutable in common: array data is immutable bytes."""
    records: dict[str, ArrayRecord | ConfigRecord | MetricRecord] = {}
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            records[name] = ArrayRecord(dict(record))
        else:
            records[name] = copy.deepcopy(record)
    return RecordDict(records)


def _identify(run_id: int) -> None:
    """Set what Flower's ``Message`` takes from the process; left alone where Flower set it."""
    try:
        _ = TaskIdentity.run_id
    except RuntimeError:
        TaskIdentity.run_id, TaskIdentity.node_id = run_id, SERVER_NODE_ID
        TaskIdentity.task_id = 0
