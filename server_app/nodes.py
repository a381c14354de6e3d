"""The node directory: nodes are greeted, checked, admitted or refused, and found again.

In a simulation every node must fit, and one that does not ends the run. In a deployment one
that does not fit is refused and told why, and the others go on if they are enough. There
nodes may join, leave and come back under a new id in any round.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.common.logger import log

from conf.tree import FederationConfig
from server_app.errors import NodeError
from server_app.exchange import Courier
from server_app.refusals import refusal, refuse_alike
from server_app.roster import Roster, lost_state, majority_first, same_shard
from strategies import wire
from strategies.codec import WireError
from strategies.messages import HELLO, REFUSED, Header, HelloReply, HelloRequest

INFO, WARNING = 20, 30
POLL_S = 0.1
LATE_HELLO_S, MAX_GREETINGS = 30.0, 3
"""How long, and how often, a node that appears during the run is given to introduce itself."""
REFUSAL_S = 15.0
"""How long a refused node is given to note why."""
GONE = frozenset(
    {
        ErrorCode.NODE_UNAVAILABLE,
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
        ErrorCode.MESSAGE_UNAVAILABLE,
    }
)
"""Errors that say a node went away, not that it failed; another id may take its place."""
SHOWN_USERS = 5


class NodeDirectory(Roster):
    """The roster of a run, kept true by greeting nodes."""

    def __init__(self, courier: Courier, header: Header, federation: FederationConfig) -> None:
        super().__init__()
        self._courier = courier
        self._header = header
        self._federation = federation
        self._seen: set[int] = set()
        self._asked: Counter[int] = Counter()
        self._resume_round = 0
        self.refused: dict[int, str] = {}
        """Why a node was not admitted, by node id."""

    @property
    def _deployed(self) -> bool:
        return self._federation.grid == "deployment"

    # ---- registration --------------------------------------------------------------------
    def register(self, resume_round: int = 0, needed: frozenset[str] = frozenset()) -> None:
        """Wait for the configured nodes and check that their shards fit together.

        ``resume_round``: the round that this start continues from; 0 at the run's beginning.
        ``needed``: shards that took part before, without which a run cannot be resumed.

        Raises:
            NodeError: at the deadline, or for other code, another catalogue, a shard key
                reported twice, users hosted twice or missing, or a node that fails.

        """
        self._resume_round = resume_round
        cfg = self._federation
        deadline = time.monotonic() + cfg.register_timeout_s
        replies: dict[int, HelloReply] = {}
        while True:
            online = set(self._courier.grid.get_node_ids())
            left = deadline - time.monotonic()
            unasked = online - replies.keys() - self.refused.keys()
            if unasked and left > 0:
                replies |= self._introduced(unasked, left)
            elif len(replies) + len(self.refused) >= cfg.num_nodes:
                break
            elif left <= 0:
                if len(replies) >= (cfg.min_nodes or cfg.num_nodes):
                    break
                raise NodeError(self._too_few(len(online), len(replies)))
            else:
                time.sleep(min(POLL_S, left))
        self._admit(replies)
        if absent := sorted(needed - self.shards.keys()):
            raise NodeError(
                f"shards {', '.join(absent)} took part in the run that is to be resumed and are "
                "not there: start their nodes and resume again"
            )

    def _introduced(self, unasked: set[int], left: float) -> dict[int, HelloReply]:
        hellos = self._greet(unasked, left, may_start=self._resume_round == 0)
        if not self._deployed:
            refuse_alike(list(hellos.values()))
        found = {}
        for node_id, reply in sorted(hellos.items()):
            try:
                found[node_id] = self._checked(node_id, reply)
            except NodeError as error:
                self._turn_away(node_id, error)
        return found

    def _admit(self, replies: Mapping[int, HelloReply]) -> None:
        expected = self._federation.num_nodes
        if len(replies) > expected and not self._deployed:
            raise NodeError(
                f"{len(replies)} nodes are registered but federation.num_nodes={expected}: "
                f"set federation.num_nodes={len(replies)} or change the number of nodes"
            )
        for node_id, reply in majority_first(replies):
            try:
                self.add(node_id, reply)
            except NodeError as error:
                self._turn_away(node_id, error)
        self._seen = set(replies) | self.refused.keys()
        if len(self.shards) < (self._federation.min_nodes or expected):
            raise NodeError(self._too_few(len(self._seen), len(self.shards)))
        self._check_cover()

    def _check_cover(self) -> None:
        """Every user of a simulation has a node; in a deployment some nodes may come later."""
        missing, total = self.missing(), self.num_users + len(self.missing())
        if len(missing) and not self._deployed:
            raise NodeError(f"no shard hosts user {missing[0]}: the shards do not cover all users")
        if len(missing):
            some = ", ".join(map(str, missing[:SHOWN_USERS].tolist()))
            more = ", …" if len(missing) > SHOWN_USERS else ""
            log(WARNING, "%d of %d users are on no node: %s%s", len(missing), total, some, more)

    # ---- during the run ------------------------------------------------------------------
    def refresh(self) -> None:
        """Greet nodes under ids not seen before: a shard that comes back, or one that joins."""
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
        known = self.shards.get(hello.shard_key)
        if known is None and self._deployed:
            self._join(node_id, hello)
            return
        if known is None or not same_shard(known, hello):
            raise NodeError(
                f"shard {hello.shard_key!r} is not the one of this run: its users or data differ"
            )
        if hello.new_run:
            raise NodeError(lost_state([hello.shard_key]))
        self.move(hello.shard_key, node_id)
        log(INFO, "Shard %r is now on node %d", hello.shard_key, node_id)

    def _join(self, node_id: int, hello: HelloReply) -> None:
        """A shard that was not there at the start; it begins the run now."""
        if hello.new_run:
            replies = self._greet([node_id], LATE_HELLO_S, may_start=True)
            if node_id not in replies:
                raise NodeError(f"shard {hello.shard_key!r} went away as it was to join")
            hello = self._checked(node_id, replies[node_id])
        self.add(node_id, hello)
        log(INFO, "Shard %r joins on node %d", hello.shard_key, node_id)

    # ---- greeting ------------------------------------------------------------------------
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
        if hello.left_out:
            log(
                WARNING,
                "Shard %r leaves out %d interactions with items that are not in the catalogue",
                hello.shard_key,
                hello.left_out,
            )
        return hello

    def _turn_away(self, node_id: int, error: NodeError) -> None:
        """At the start: refuse one node of a deployment; a simulation ends."""
        if not self._deployed:
            raise error
        self._refuse(node_id, str(error))

    def _refuse(self, node_id: int, reason: str) -> None:
        """Note why a node is not admitted, here and in the node's own log."""
        self.refused[node_id] = reason
        log(WARNING, "Node %d is not admitted to the run: %s", node_id, reason)
        if self._deployed:
            content = wire.encode_refusal(self._header, reason)
            message = Message(content, node_id, REFUSED, group_id="hello")
            self._courier.exchange([message], REFUSAL_S)

    def _too_few(self, online: int, answered: int) -> str:
        cfg = self._federation
        if self.refused:
            (first, reason), *others = sorted(self.refused.items())
            more = f" (and {len(others)} more)" if others else ""
            return (
                f"{answered} of {cfg.num_nodes} nodes are fit for the run; node {first} was "
                f"refused: {reason}{more}"
            )
        return (
            f"{answered} of {cfg.num_nodes} nodes introduced themselves within "
            f"{cfg.register_timeout_s:g} s ({online} online): start the missing nodes, lower "
            "federation.num_nodes or raise federation.register_timeout_s"
        )
