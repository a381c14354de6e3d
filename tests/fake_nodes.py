"""A made-up ClientApp for tests of the server: real messages, arithmetic instead of training.

Private state is one number a user and round, kept and dropped as a node's store would; an
update depends on it, so a server that asks for the wrong round gets another result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from conf.compose import compose
from conf.tree import Config, from_json
from models.rng import Role, derive_rng
from models.types import IntArray, Update
from strategies import wire
from strategies.messages import Downlink, EvaluateReply, EvaluateRequest, HelloReply, Uplink

NUM_USERS, NUM_ITEMS = 20, 12
HITS = (0.3, 0.5, 0.5, 0.4, 0.6, 0.2, 0.1, 0.7, 0.6, 0.5, 0.5, 0.9)
"""Validation hit rate by round; test figures are others, so that a mix-up shows."""


def tiny_config(output: Path, *overrides: str) -> Config:
    return compose(
        [
            "dataset=file",
            "dataset.path=/nowhere.csv",
            "dataset.name=tiny",
            "strategy=fedncf",
            "model.factors=2",
            "federation.rounds=6",
            "federation.fraction=0.5",
            "federation.checkpoint_every=2",
            "evaluation.every=3",
            f"output={output}",
            *overrides,
        ]
    )


@dataclass
class FakeNodes:
    """Nodes with contiguous shards; tests change the hooks to make them misbehave."""

    code: str
    num_users: int = NUM_USERS
    hello: Callable[[int, HelloReply], HelloReply] = lambda index, reply: reply
    before_train: Callable[[int, Downlink], None] = lambda index, downlink: None
    uplink: Callable[[int, Uplink], Uplink] = lambda index, uplink: uplink
    told: Callable[[int, str], None] = lambda index, reason: None
    states: dict[tuple[str, int], dict[int, float]] = field(default_factory=dict)
    """By (run id, user): value by round."""
    before_evaluate: Callable[[int, EvaluateRequest], None] = lambda index, request: None
    evaluation: Callable[[int, EvaluateReply], EvaluateReply] = lambda index, reply: reply
    downlinks: list[tuple[int, Downlink]] = field(default_factory=list)
    evaluations: list[tuple[int, str, int, bool]] = field(default_factory=list)
    """Node, scorer, state round, full."""
    trained: dict[str, int] = field(default_factory=dict)
    """By shard: the last round trained."""
    folded: list[tuple[int, int]] = field(default_factory=list)
    """Node and round of evaluations that came with training requests."""

    def app(self) -> ClientApp:
        app = ClientApp()
        app.query("hello")(self._hello)
        app.query("item_counts")(self._item_counts)
        app.query("refused")(self._refused)
        app.train()(self._train)
        app.evaluate()(self._evaluate)
        return app

    def users(self, context: Context) -> IntArray:
        index, nodes = self.index(context), int(context.node_config["num-partitions"])
        return np.array_split(np.arange(self.num_users), nodes)[index]

    @staticmethod
    def index(context: Context) -> int:
        return int(context.node_config["partition-id"])

    def key(self, context: Context) -> str:
        return f"shard-{self.index(context)}"

    def _hello(self, message: Message, context: Context) -> Message:
        wire.decode_header(message.content)
        reply = HelloReply(
            self.key(context),
            self.users(context),
            self.code,
            "data",
            "catalogue",
            NUM_ITEMS,
            self.num_users,
            last_round=self.trained.get(self.key(context), 0),
        )
        reply = self.hello(self.index(context), reply)
        return Message(wire.encode_hello(reply), reply_to=message)

    def _item_counts(self, message: Message, context: Context) -> Message:
        counts_I = np.arange(NUM_ITEMS, 0, -1) * len(self.users(context))
        return Message(wire.encode_item_counts(counts_I), reply_to=message)

    def _refused(self, message: Message, context: Context) -> Message:
        self.told(self.index(context), wire.decode_refusal(message.content))
        return Message(RecordDict(), reply_to=message)

    def _train(self, message: Message, context: Context) -> Message:
        started = time.perf_counter()
        downlink = wire.decode_downlink(message.content)
        assert downlink.users is not None
        index = self.index(context)
        self.downlinks.append((index, downlink))
        self.before_train(index, downlink)
        self.trained[self.key(context)] = downlink.round
        tensors = {name: torch.zeros_like(t) for name, t in downlink.shared.items()}
        for user in downlink.users.tolist():
            value = self._advance(downlink, user)
            rng = derive_rng(7, Role.TRAIN, user, downlink.round)
            for name, shared in sorted(downlink.shared.items()):
                noise = torch.from_numpy(rng.standard_normal(shared.shape).astype(np.float32))
                tensors[name] += value * noise + 0.1 * shared
        users = len(downlink.users)
        uplink = Uplink(
            self.key(context),
            downlink.round,
            users,
            Update(tensors, float(users)),
            {"loss": 0.5 * users},
            time.perf_counter() - started,
        )
        content = wire.encode_uplink(self.uplink(index, uplink), ["item_gmf"])
        if downlink.evaluate:
            base, full = downlink.base_round, downlink.evaluate == "full"
            asked = EvaluateRequest(downlink.header, base, base, "model", full, downlink.shared)
            self.folded.append((index, base))
            content = wire.attach_evaluation(content, self._ranking(asked, context))
        return Message(content, reply_to=message)

    def _advance(self, downlink: Downlink, user: int) -> float:
        values = self.states.setdefault((downlink.header.run_id, user), {})
        base = max((r for r in values if r <= downlink.base_round), default=None)
        value = (1.0 if base is None else values[base]) + 0.25
        values[downlink.round] = value
        keep = {max((r for r in values if r <= k), default=None) for k in downlink.keep_rounds}
        for old in [r for r in values if r <= downlink.keep_rounds[0] and r not in keep]:
            del values[old]
        for newer in [r for r in values if r > downlink.round]:
            del values[newer]
        return value

    def _evaluate(self, message: Message, context: Context) -> Message:
        request = wire.decode_evaluate(message.content)
        return Message(self._ranking(request, context), reply_to=message)

    def _ranking(self, request: EvaluateRequest, context: Context) -> RecordDict:
        users = float(len(self.users(context)))
        cfg = from_json(request.header.config_json)
        self.before_evaluate(self.index(context), request)
        state = (self.index(context), request.scorer, request.state_round, request.full)
        self.evaluations.append(state)
        popular = request.scorer == "popularity"
        hit = 0.2 if popular else HITS[request.round - 1]
        metrics, exposure_I = {}, None
        for kind in ("sampled", "full") if request.full else ("sampled",):
            for part, value in (("validation", hit), ("test", hit / 2)):
                if part == "validation" and not cfg.protocol.validation:
                    continue
                for name, factor in (("hr", 1.0), ("ndcg", 0.5), ("mrr", 0.25)):
                    for cutoff in cfg.evaluation.cutoffs:
                        metrics[f"{part}/{kind}/{name}@{cutoff}"] = value * factor * users
        if request.full and cfg.evaluation.item_statistics:
            exposure_I = np.zeros(NUM_ITEMS, np.int64)
            exposure_I[:10] = int(users)
        counts = dict.fromkeys(metrics, users)
        reply = EvaluateReply(self.key(context), request.round, metrics, counts, exposure_I, 0.001)
        reply = self.evaluation(self.index(context), reply)
        return wire.encode_evaluate_reply(reply)
