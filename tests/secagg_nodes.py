"""Real nodes that go away, fail, or get and send what was tampered with, at any stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from made_up import small_config

from client_app.app import app
from conf.tree import Config, build_strategy
from models.rng import Role, derive_rng
from server_app.grid import LocalGrid
from server_app.results import RunResult
from server_app.run import run_server
from server_app.secagg import Summed
from strategies import wire
from strategies.messages import Uplink
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


NODES, ITEMS = 5, 39
HALF_STEP = 2.0**-33
SECURE = ("privacy=secagg", "privacy.secagg.threshold=0.6")
"""Of 5 nodes 3 must stay, which is also the least number of nodes."""
TOLERANT = "federation.min_share=0.5"
"""Two of five nodes hold at most 10 of 24 users."""


def config(folder: Path, *overrides: str) -> Config:
    one = ("federation.rounds=1", "evaluation.every=1", "federation.fraction=1.0")
    return small_config(folder, f"federation.num_nodes={NODES}", *one, *overrides)


def uplinks(plain: Nodes, cfg: Config) -> dict[str, Uplink]:
    """What each node sends in the first round, by shard."""
    strategy = build_strategy(cfg)
    shared = strategy.init_shared(ITEMS, derive_rng(cfg.seed, Role.INIT_SHARED))
    template = strategy.summed_template(shared)
    contents = [content for _, kind, content in plain.replies if kind == "train"]
    found = [wire.decode_uplink(content, template) for content in contents]
    return {uplink.shard_key: uplink for uplink in found}


def run(cfg: Config, nodes: Nodes) -> RunResult:
    return run_server(nodes.grid(NODES), cfg)


def assert_sum_of(summed: Summed, parts: list[Uplink]) -> None:
    """Every entry of the sum is within the bound of the float64 sum of the nodes' own."""
    bound = len(parts) * HALF_STEP
    for name in parts[0].update.tensors:
        each = [part.update.tensors[name].to_dense().numpy().astype(np.float64) for part in parts]
        exact = np.sum(each, axis=0)
        error = np.abs(summed.payload.tensors[f"update/{name}"] - exact)
        # Adding the float64 numbers here rounds too: a few 2^-53 of their magnitudes.
        rounding = len(parts) * 2.0**-53 * np.sum(np.abs(each), axis=0)
        assert (error <= bound + rounding).all()
        assert np.abs(exact).max() > 1000 * bound, "the bound says something"
    figures = summed.payload.figures
    assert figures["weight"] == sum(part.update.weight for part in parts)
    assert figures["users"] == sum(part.num_users for part in parts) == summed.users
    for name in parts[0].metrics:
        exact_sum = sum(part.metrics[name] for part in parts)
        assert abs(figures[f"sum/{name}"] - exact_sum) <= bound + 2.0**-48 * abs(exact_sum)
