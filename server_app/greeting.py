"""Greeting nodes: what they say of themselves, whether it can be used, and telling them if not."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.common.logger import log

from server_app.errors import NodeError
from server_app.exchange import Courier
from server_app.refusals import refusal
from strategies import wire
from strategies.codec import WireError
from strategies.messages import HELLO, REFUSED, Header, HelloReply, HelloRequest

WARNING = 30
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


class Greeter:
    """Says hello, and no."""

    def __init__(self, courier: Courier, header: Header, *, tell: bool) -> None:
        """``tell``: nodes that are refused are told why."""
        self._courier, self._header, self._tell = courier, header, tell
        self.resume_round = 0
        """The round that this start of the server continues from."""
        self.refused: dict[int, str] = {}
        """Why a node was not admitted, by node id."""

    def greet(
        self, node_ids: Iterable[int], wait_s: float, *, may_start: bool
    ) -> dict[int, Message]:
        """Say hello; the replies by node id, without those of nodes that went away."""
        request = HelloRequest(self._header, may_start, self.resume_round)
        content = wire.encode_hello_request(request)
        messages = [Message(content, node, HELLO, group_id="hello") for node in sorted(node_ids)]
        delivery = self._courier.exchange(messages, wait_s)
        return {
            delivery.node_of[reply.metadata.reply_to_message_id]: reply
            for reply in delivery.replies
            if not (reply.has_error() and reply.error.code in GONE)
        }

    def introduction(self, node_id: int, reply: Message) -> HelloReply:
        """What a node says of itself.

        Raises:
            NodeError: when it failed, says it badly, or runs other code.

        """
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

    def refuse(self, node_id: int, reason: str) -> None:
        """Note why a node is not admitted, here and in the node's own log."""
        self.refused[node_id] = reason
        log(WARNING, "Node %d is not admitted to the run: %s", node_id, reason)
        if self._tell:
            content = wire.encode_refusal(self._header, reason)
            message = Message(content, node_id, REFUSED, group_id="hello")
            self._courier.exchange([message], REFUSAL_S)
