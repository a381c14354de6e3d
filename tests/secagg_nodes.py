"""Real nodes that go away, fail, or get and send what was tampered with, at any stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from client_app.app import app
from server_app.grid import LocalGrid
from strategies.secagg.protocol import KEYS, SHARES, UNMASK

Stage = tuple[str, int]
"""Message type, and which of a node's messages of this type: the first is 1."""
STAGES = {"keys": KEYS, "shares": SHARES, "upload": "train", "unmask": UNMASK}


@dataclass
class Nodes:
    """The application behind a grid; ``gone`` has the stage from which on a node is away."""

    gone: Mapping[int, Stage] = field(default_factory=dict)
    back: Mapping[int, Stage] = field(default_factory=dict)
    """A node that is away is back with this stage, counted over all its messages."""
    request: Callable[[int, Message], None] = lambda node, message: None
    """Changes a request on its way."""
    reply: Callable[[int, Message], None] = lambda node, message: None
    """Sees a reply on its way."""
    seen: list[tuple[int, str]] = field(default_factory=list)
    """Node and message type of every request that arrived."""
    replies: list[tuple[int, str, RecordDict]] = field(default_factory=list)
    """The same with the answer, of those that were no errors."""
    away: set[int] = field(default_factory=set)

    def __call__(self, message: Message, context: Context) -> Message:
        node, kind = int(context.node_config["partition-id"]), message.metadata.message_type
        self.seen.append((node, kind))
        stage = kind, self.seen.count((node, kind))
        if self.gone.get(node) == stage:
            self.away.add(node)
        if self.back.get(node) == stage:
            self.away.discard(node)
        if node in self.away:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "it is gone"), reply_to=message)
        self.request(node, message)
        answer = app(message, context)
        if answer.has_content():
            self.reply(node, answer)
            self.replies.append((node, kind, answer.content))
        return answer

    def asked(self, kind: str) -> list[int]:
        """Nodes that a request of this type reached."""
        return [node for node, k in self.seen if k == kind]

    def grid(self, num_nodes: int, workers: Literal[1] = 1) -> LocalGrid:
        """A grid of them."""
        return LocalGrid(num_nodes, self, workers=workers)  # type: ignore[arg-type]
