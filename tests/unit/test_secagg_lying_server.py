"""What nodes refuse a server that does not keep to the protocol, message by message."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_run
from flwr.app import ConfigRecord, Message, RecordDict

from conf.tree import Config
from server_app.grid import LocalGrid
from strategies import wire
from strategies.messages import HELLO, EvaluateRequest
from strategies.messages import ITEM_COUNTS as COUNTS_KIND
from strategies.secagg import records
from strategies.secagg.protocol import (
    ITEM_COUNTS,
    KEYS,
    SHARES,
    UNMASK,
    PublicKeys,
    Scope,
    evaluation_sum,
)

NODES = 4
KEEP = "the survivors are not those that masked together"


class ByHand:
    """A server that sends what a test wants, to four nodes; replies are by shard key."""

    def __init__(self, cfg: Config, grid: LocalGrid | None = None) -> None:
        self.cfg, self.header = cfg, tiny_run.header(cfg)
        self.grid = LocalGrid(NODES) if grid is None else grid
        self.ids = list(self.grid.contexts)
        fields = {**wire.encode_header(self.header), "may-start": True, "resume-round": 0}
        for node in self.ids:
            self.send(node, HELLO, RecordDict({"config": ConfigRecord(fields)}))
        self.names = [f"{i:06d}-of-{NODES:06d}" for i in range(NODES)]
        self.roster: dict[str, PublicKeys] = {}
        self.sealed: dict[str, records.Texts] = {}

    def send(self, node: int, kind: str, content: RecordDict) -> Message:
        (reply,) = self.grid.send_and_receive([Message(content, node, kind)])
        return reply

    def error(self, reply: Message) -> str:
        assert reply.has_error(), "the node answered"
        return reply.error.reason

    def scope(self, session: str, what: str = ITEM_COUNTS) -> Scope:
        return Scope(self.header.run_id, what, session)

    def open(self, scope: Scope, threshold: int = 3) -> None:
        """Keys and shares of all nodes."""
        asked = records.request_of(self.header, scope)
        replies = [self.send(node, KEYS, asked).content for node in self.ids]
        self.roster = {a.shard_key: a.keys for a in map(records.advertised, replies)}
        assert sorted(self.roster) == self.names
        fields = records.roster_fields(self.roster, threshold)
        request = records.request_of(self.header, scope, **fields)
        texts = [records.texts_of(self.send(n, SHARES, request).content) for n in self.ids]
        self.sealed = {t.shard_key: t for t in texts}

    def with_shares(self, content: RecordDict, scope: Scope, target: int) -> RecordDict:
        me = self.names[target]
        shares = {s: t.values[me] for s, t in self.sealed.items() if s != me}
        return RecordDict({**content, "secagg": records.sealed_fields(scope, shares)})

    def counts(self, scope: Scope, target: int) -> Message:
        content = RecordDict({"config": ConfigRecord(dict(wire.encode_header(self.header)))})
        return self.send(self.ids[target], COUNTS_KIND, self.with_shares(content, scope, target))

    def upload_counts(self, scope: Scope) -> None:
        assert all(self.counts(scope, i).has_content() for i in range(NODES))

    def ranking(self, scope: Scope, target: int, users: list[int] | None) -> Message:
        request = EvaluateRequest(
            self.header, 0, 0, "model", True, tiny_run.shared(self.cfg),
            None if users is None else np.array(users),
        )  # fmt: skip
        content = self.with_shares(wire.encode_evaluate(request), scope, target)
        return self.send(self.ids[target], "evaluate", content)

    def unmask(self, scope: Scope, target: int, survivors: list[str]) -> Message:
        content = records.request_of(self.header, scope, survivors=survivors)
        return self.send(self.ids[target], UNMASK, content)


@pytest.fixture
def cfg(tmp_path: Path) -> Config:
    return tiny_run.config(
        tmp_path, "privacy=secagg", f"federation.num_nodes={NODES}", "strategy=fedncf", "model=mf"
    )


@pytest.fixture
def server(cfg: Config) -> ByHand:
    return ByHand(cfg)


# ---- unmasking ---------------------------------------------------------------------------
def test_never_the_shares_of_both_secrets_of_a_node(server: ByHand) -> None:
    scope = server.scope("s")
    server.open(scope)
    server.upload_counts(scope)
    given = records.texts_of(server.unmask(scope, 0, server.names[:3]).content)
    assert sorted(given.values) == server.names[:3]
    assert sorted(given.more) == server.names[3:]


def test_nothing_is_unmasked_before_the_upload(server: ByHand) -> None:
    scope = server.scope("s")
    server.open(scope)
    assert KEEP in server.error(server.unmask(scope, 0, server.names))


def test_survivors_below_the_threshold_get_no_shares(server: ByHand) -> None:
    scope = server.scope("s")
    server.open(scope)
    server.upload_counts(scope)
    reason = server.error(server.unmask(scope, 0, server.names[:2]))
    assert "2 survivors are below the threshold of 3" in reason


@pytest.mark.parametrize("who", [[1, 2, 3], [0, 1, 2, 9]])
def test_survivors_are_those_of_the_session(server: ByHand, who: list[int]) -> None:
    """Without the node itself, or with one that was not there."""
    scope = server.scope("s")
    server.open(scope)
    server.upload_counts(scope)
    names = [f"{i:06d}-of-{NODES:06d}" for i in who]
    assert KEEP in server.error(server.unmask(scope, 0, names))


def test_one_sum_of_one_set_of_nodes(server: ByHand) -> None:
    """The same nodes may unmask again; others may not, in this session or in a new one."""
    first, second = server.scope("first"), server.scope("second")
    server.open(first)
    server.upload_counts(first)
    assert server.unmask(first, 0, server.names).has_content()
    assert server.unmask(first, 0, server.names).has_content()
    assert "other values of survivors" in server.error(server.unmask(first, 0, server.names[:3]))
    server.open(second)
    server.upload_counts(second)
    reason = server.error(server.unmask(second, 0, server.names[:3]))
    assert "item_counts was unmasked for other nodes before" in reason
    assert server.unmask(second, 0, server.names).has_content()


def test_one_sum_has_one_part_of_a_node(server: ByHand) -> None:
    """The first node's ranking of five users, then of four: the difference is a user's own."""
    what = evaluation_sum("model", 0)
    first, second = server.scope("first", what), server.scope("second", what)
    server.open(first)
    assert all(server.ranking(first, i, None).has_content() for i in range(NODES))
    assert server.unmask(first, 0, server.names).has_content()
    server.open(second)
    assert server.ranking(second, 0, [0, 1, 2, 3]).has_content()
    reason = server.error(server.unmask(second, 0, server.names))
    assert "was unmasked with another part of this node before" in reason
    # Within a session the masks are the same, so that not even an upload differs.
    assert "other values of uploaded" in server.error(server.ranking(second, 0, [0, 1]))


def test_an_upload_asked_for_again_is_the_same_to_the_bit(server: ByHand) -> None:
    """Also where the node has ranked anew, and for another time."""
    what = evaluation_sum("model", 0)
    scope = server.scope("s", what)
    server.open(scope)
    one, two = (records.upload_of(server.ranking(scope, 1, None).content, 64) for _ in range(2))
    assert one.vectors.to_bytes() == two.vectors.to_bytes()


# ---- sessions ----------------------------------------------------------------------------
def test_keys_are_fresh_in_each_session_and_kept_within_one(server: ByHand) -> None:
    def keys(session: str) -> PublicKeys:
        asked = records.request_of(server.header, server.scope(session))
        return records.advertised(server.send(server.ids[0], KEYS, asked).content).keys

    one, again, two = keys("one"), keys("one"), keys("two")
    assert one == again
    assert len({one.cipher, one.mask, two.cipher, two.mask}) == 4


def test_a_roster_of_two_gets_no_shares(server: ByHand) -> None:
    scope = server.scope("s")
    server.open(scope)
    fields = records.roster_fields({n: server.roster[n] for n in server.names[:2]}, 2)
    request = records.request_of(server.header, scope, **fields)
    assert "2 nodes are too few" in server.error(server.send(server.ids[0], SHARES, request))


def test_a_second_roster_in_a_session_is_refused(server: ByHand) -> None:
    scope = server.scope("s")
    server.open(scope)
    fields = records.roster_fields({n: server.roster[n] for n in server.names[:3]}, 2)
    request = records.request_of(server.header, scope, **fields)
    reason = server.error(server.send(server.ids[0], SHARES, request))
    assert "this session was asked with other values of peers before" in reason


def test_shares_of_fewer_nodes_than_the_threshold_get_no_upload(server: ByHand) -> None:
    scope = server.scope("s")
    server.open(scope, threshold=4)
    del server.sealed[server.names[3]]
    assert "a threshold of 4 of 3 nodes" in server.error(server.counts(scope, 0))


def test_shares_of_another_sum_do_not_open(server: ByHand) -> None:
    one, other = server.scope("one"), server.scope("other")
    server.open(one)
    kept = server.sealed
    server.open(other)
    server.sealed = kept
    assert "a sealed share was changed on its way" in server.error(server.counts(other, 0))


def test_a_session_is_for_what_it_was_opened_for(server: ByHand) -> None:
    scope = server.scope("s", "train/1")
    server.open(scope)
    assert "a session of train/1 for item_counts" in server.error(server.counts(scope, 0))


def test_an_unknown_session_is_refused(server: ByHand) -> None:
    server.open(server.scope("s"))
    reason = server.error(server.counts(server.scope("other"), 0))
    assert "the keys of this session of item_counts are not here any more" in reason


# ---- in clear ----------------------------------------------------------------------------
def test_nothing_is_sent_without_a_session(server: ByHand) -> None:
    """Training, ranking and counts as a server asks for them that knows of no masks."""
    header, shared = server.header, tiny_run.shared(server.cfg)
    plain = {
        "train": wire.encode_downlink(tiny_run.downlink(header, shared, [0, 1])),
        "evaluate": wire.encode_evaluate(tiny_run.evaluation(header, shared)),
        COUNTS_KIND: RecordDict({"config": ConfigRecord(dict(wire.encode_header(header)))}),
    }
    for kind, content in plain.items():
        assert "secagg" in server.error(server.send(server.ids[0], kind, content))


def test_neither_weights_nor_a_folded_ranking_are_sent(server: ByHand) -> None:
    request = tiny_run.downlink(server.header, tiny_run.shared(server.cfg), [0, 1])
    content = wire.encode_downlink(replace(request, evaluate="sampled"))
    reason = server.error(server.send(server.ids[0], "train", content))
    assert "an evaluation is a sum of its own" in reason


def test_a_node_may_ask_for_masks(tmp_path: Path) -> None:
    """Its owner says so on the node, since it is the server that sends the configuration."""
    configs = [
        {"partition-id": i, "num-partitions": NODES, "require-secagg": True} for i in range(NODES)
    ]
    open_ = tiny_run.config(tmp_path, f"federation.num_nodes={NODES}")
    server = ByHand(open_, LocalGrid(NODES, node_configs=configs))
    content = RecordDict({"config": ConfigRecord(dict(wire.encode_header(server.header)))})
    reason = server.error(server.send(server.ids[0], COUNTS_KIND, content))
    assert "this node has require-secagg=true and sends no sums of its own in clear" in reason
