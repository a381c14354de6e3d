"""The node directory: who hosts which users, checked when nodes introduce themselves.

A node is known by its shard key. Flower's node ids are random and change when a node
restarts, so they are used for addressing alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.common.logger import log

from conf.tree import FederationConfig
from models.types import IntArray
from server_app.errors import NodeError
from server_app.exchange import Courier
from server_app.refusals import refusal, refuse_alike
from server_app.shards import check_catalogue, owners, same_shard
from strategies import wire
from strategies.codec import WireError
from strategies.messages import HELLO, Header, HelloReply, HelloRequest

INFO, WARNING = 20, 30
POLL_S = 0.1
LATE_HELLO_S, MAX_GREETINGS = 30.0, 3
"""How long, and how often, a node that appears during the run is given to introduce itself."""
GONE = frozenset({ErrorCode.NODE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE})
"""Errors that say a node went away, not that it failed; another id may take its place."""


def lost_state(shard_keys: Iterable[str]) -> str:
    """What to say of shards whose stores know nothing of a run that they took part in."""
    return (
        f"shards {', '.join(sorted(shard_keys))} lost the private state of this run: restore "
        "their stores, or start a new run"
    )


class NodeDirectory:
    """Maps users to shards and shards to the nodes that host them now."""

    def __init__(self, courier: Courier, header: Header, federation: FederationConfig) -> None:
        self._courier = courier
        self._header = header
        self._federation = federation
        self._hello: dict[str, HelloReply] = {}
        self._node_of: dict[str, int] = {}
        self._seen: set[int] = set()
        self._asked: Counter[int] = Counter()
        self._resume_round = 0
        self._keys: tuple[str, ...] = ()
        self._owner_U: IntArray = np.empty(0, np.int64)
        self.refused: dict[int, str] = {}
        """Why a node that appeared during the run was not admitted, by node id."""

    # ---- what others ask -----------------------------------------------------------------
    @property
    def shards(self) -> Mapping[str, HelloReply]:
        """Every shard's introduction, by shard key in ascending order."""
        return {key: self._hello[key] for key in self._keys}

    @property
    def num_users(self) -> int:
        """Users of the federation, N; their indices are 0..N-1."""
        return len(self._owner_U)

    @property
    def num_items(self) -> int:
        """Items of the catalogue, I."""
        return self._hello[self._keys[0]].num_items

    def node(self, shard_key: str) -> int:
        """The id of the node that hosts a shard now."""
        return self._node_of[shard_key]

    def shard_at(self, node_id: int) -> str:
        """The shard key of a node id, for messages; unknown ids read as such."""
        return next((k for k, n in self._node_of.items() if n == node_id), "unknown")

    def split(self, users: IntArray) -> dict[str, IntArray]:
        """Split user indices by shard; shards in ascending order, users in the given order."""
        owners = self._owner_U[users]
        order = np.argsort(owners, kind="stable")
        present, starts = np.unique(owners[order], return_index=True)
        parts = np.split(users[order], starts[1:]) if len(users) else []
        return {self._keys[owner]: part for owner, part in zip(present, parts, strict=True)}

    # ---- registration --------------------------------------------------------------------
    def register(self, resume_round: int = 0) -> None:
        """Wait for the configured number of nodes and check that their shards fit together.

        ``resume_round``: the round that this start continues from; 0 at the run's beginning.

        Raises:
            NodeError: at the deadline, or for other code, another catalogue, a shard key
                reported twice, users hosted twice or missing, or a node that fails.

        """
        self._resume_round = resume_round
        deadline = time.monotonic() + self._federation.register_timeout_s
        replies: dict[int, HelloReply] = {}
        while True:
            online = set(self._courier.grid.get_node_ids())
            left = deadline - time.monotonic()
            unasked = online - replies.keys()
            if unasked and left > 0:
                hellos = self._greet(unasked, left, may_start=resume_round == 0)
                refuse_alike(list(hellos.values()))
                replies.update({n: self._checked(n, reply) for n, reply in hellos.items()})
            elif len(replies) >= self._federation.num_nodes:
                break
            elif left <= 0:
                raise NodeError(self._too_few(len(online), len(replies)))
            else:
                time.sleep(min(POLL_S, left))
        self._admit(replies)

    def refresh(self) -> None:
        """Greet nodes under ids not seen before; a known shard key moves to its new node."""
        unknown = set(self._courier.grid.get_node_ids()) - self._seen
        if not unknown:
            return
        self._asked.update(unknown)
        # A node that is silent is asked again in a later round, but not for ever.
        self._seen |= {node for node in unknown if self._asked[node] >= MAX_GREETINGS}
        wait_s = min(self._federation.deadline_s, LATE_HELLO_S)
        replies = self._greet(unknown, wait_s, may_start=False)
        self._seen |= replies.keys()
        for node_id, reply in sorted(replies.items()):
            try:
                self._take_over(node_id, self._checked(node_id, reply))
            except NodeError as error:
                self._refuse(node_id, str(error))

    def _take_over(self, node_id: int, hello: HelloReply) -> None:
        known = self._hello.get(hello.shard_key)
        if known is None or not same_shard(known, hello):
            raise NodeError(f"shard {hello.shard_key!r} is not the one of this run")
        if hello.new_run:
            raise NodeError(lost_state([hello.shard_key]))
        self._node_of[hello.shard_key] = node_id
        log(INFO, "Shard %r is now on node %d", hello.shard_key, node_id)

    def _greet(
        self, node_ids: Iterable[int], wait_s: float, *, may_start: bool
    ) -> dict[int, Message]:
        """Say hello; the replies by node id, without those of nodes that went away."""
        request = HelloRequest(self._header, may_start, self._resume_round)
        content = wire.encode_hello_request(request)
        messages = [Message(content, node, HELLO, group_id="hello") for node in sorted(node_ids)]
        delivery = self._courier.exchange(messages, wait_s)
        return {
            delivery.node_of[reply.metadata.reply_to_message_id]: reply
            for reply in delivery.replies
            if not (reply.has_error() and reply.error.code in GONE)
        }

    def _checked(self, node_id: int, reply: Message) -> HelloReply:
        if reply.has_error():
            raise NodeError(refusal(node_id, reply.error.reason))
        try:
            hello = wire.decode_hello(reply.content)
        except WireError as error:
            raise NodeError(f"node {node_id} introduced itself badly: {error}") from error
        if hello.code != self._header.code:
            raise NodeError(
                f"node {node_id} (shard {hello.shard_key!r}) runs other code than the server: "
                f"{hello.code} there, {self._header.code} here. Stop the SuperLink with "
                "`fedrecgel stop` (or end it by its process id) and start again from a "
                "directory without another copy of this app"
            )
        return hello

    def _admit(self, replies: Mapping[int, HelloReply]) -> None:
        expected = self._federation.num_nodes
        if len(replies) != expected:
            raise NodeError(
                f"{len(replies)} nodes are registered but federation.num_nodes={expected}: "
                f"set federation.num_nodes={len(replies)} or change the number of nodes"
            )
        for node_id, reply in sorted(replies.items()):
            if reply.shard_key in self._hello:
                other = self._node_of[reply.shard_key]
                raise NodeError(
                    f"nodes {other} and {node_id} both report shard {reply.shard_key!r}"
                )
            self._hello[reply.shard_key], self._node_of[reply.shard_key] = reply, node_id
        self._seen = set(replies)
        self._keys = tuple(sorted(self._hello))
        check_catalogue(self.shards)
        self._owner_U = owners(self.shards)

    def _refuse(self, node_id: int, reason: str) -> None:
        self.refused[node_id] = reason
        log(WARNING, "Node %d is not admitted to the run: %s", node_id, reason)

    def _too_few(self, online: int, answered: int) -> str:
        cfg = self._federation
        return (
            f"{answered} of {cfg.num_nodes} nodes introduced themselves within "
            f"{cfg.register_timeout_s:g} s ({online} online): start the missing nodes, lower "
            "federation.num_nodes or raise federation.register_timeout_s"
        )
