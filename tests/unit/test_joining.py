"""Nodes of a deployment that join, leave and come back, over an in-process grid."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from fake_nodes import NUM_USERS, FakeNodes, tiny_config

from conf.fingerprint import code_fingerprint
from server_app.callbacks import Callback, RoundRecord, read_metrics
from server_app.errors import CheckpointError, NodeError, RoundError
from server_app.grid import LocalGrid
from server_app.results import RunResult
from server_app.run import run_server
from strategies.messages import Downlink, HelloReply

DEPLOYED = [
    "federation.grid=deployment",
    "federation.num_nodes=3",
    "federation.register_timeout_s=0.3",
    "federation.on_missing=retry",
    "federation.rejoin_s=1.0",
]


class Between(Callback):
    """Calls ``what`` after a round."""

    def __init__(self, server_round: int, what: object) -> None:
        self._round, self._what = server_round, what

    def on_round(self, record: RoundRecord) -> None:
        if record.round == self._round:
            self._what()  # type: ignore[operator]


@pytest.fixture
def nodes() -> FakeNodes:
    return FakeNodes(code_fingerprint())


@pytest.fixture
def grid(nodes: FakeNodes) -> LocalGrid:
    return LocalGrid(3, nodes.app())


def run(
    tmp_path: Path, grid: LocalGrid, *overrides: str, then: Callback | None = None
) -> RunResult:
    cfg = tiny_config(tmp_path, *DEPLOYED, "name=run", *overrides)
    return run_server(grid, cfg, [] if then is None else [then])


def without(grid: LocalGrid, index: int) -> tuple[int, object]:
    node = list(grid.contexts)[index]
    return node, grid.contexts.pop(node)


def test_a_node_joins_and_its_users_take_part(
    tmp_path: Path, nodes: FakeNodes, grid: LocalGrid
) -> None:
    node, context = without(grid, 2)
    asked = list[tuple[int, bool]]()

    def hello(index: int, reply: HelloReply) -> HelloReply:
        # The first time the node knows nothing of the run, and starts it when it may.
        fresh = index == 2 and not asked
        if index == 2:
            asked.append((index, fresh))
        return replace(reply, new_run=fresh)

    nodes.hello = hello
    run(
        tmp_path,
        grid,
        "federation.min_nodes=2",
        "federation.fraction=1.0",
        then=Between(2, lambda: grid.contexts.update({node: context})),  # type: ignore[dict-item]
    )
    trained = [line["num_users"] for line in read_metrics(tmp_path / "run")]
    assert trained == [14, 14, NUM_USERS, NUM_USERS, NUM_USERS, NUM_USERS]
    assert [fresh for _, fresh in asked] == [True, False]


def test_fewer_nodes_than_needed_are_named(tmp_path: Path, grid: LocalGrid) -> None:
    without(grid, 1)
    with pytest.raises(NodeError, match="2 of 3 nodes introduced themselves"):
        run(tmp_path, grid)


def test_one_bad_node_is_refused_told_why_and_the_others_go_on(
    tmp_path: Path, nodes: FakeNodes, grid: LocalGrid, caplog: pytest.LogCaptureFixture
) -> None:
    told = list[str]()
    nodes.told = lambda index, reason: told.append(reason)
    nodes.hello = lambda index, reply: replace(reply, catalogue="others") if index == 0 else reply
    with caplog.at_level(logging.WARNING):
        run(tmp_path, grid, "federation.min_nodes=2", "federation.rounds=1")
    (reason,) = told
    assert "shards 'shard-1' and 'shard-0' have different catalogues" in reason
    assert f"is not admitted to the run: {reason}" in caplog.text
    assert "7 of 20 users are on no node: 0, 1, 2, 3, 4, …" in caplog.text
    (line,) = read_metrics(tmp_path / "run")
    assert line["num_users"] == 6  # half of the 13 users that are left


def test_a_key_claimed_twice_fails_a_run_that_needs_all(
    tmp_path: Path, nodes: FakeNodes, grid: LocalGrid
) -> None:
    nodes.hello = lambda index, reply: (
        replace(reply, shard_key="shard-1", users=reply.users) if index == 2 else reply
    )
    with pytest.raises(NodeError, match=r"2 of 3 nodes are fit .* both report shard 'shard-1'"):
        run(tmp_path, grid)


def test_a_node_that_went_away_is_awaited(
    tmp_path: Path, nodes: FakeNodes, grid: LocalGrid
) -> None:
    """It is gone when round 2 begins and returns under another id while it is awaited."""
    gone = list[object]()

    def leave() -> None:
        gone.append(without(grid, 1)[1])
        original = grid.get_node_ids
        looks = iter(range(100))

        def look() -> list[int]:
            # Twice nobody is there: once at the round's begin, once as the retry begins.
            if next(looks) == 3:
                context = gone.pop()
                new_id, fresh = grid._context(context.node_config)  # type: ignore[attr-defined]
                fresh.state = context.state  # type: ignore[attr-defined]
                grid.contexts[new_id] = fresh
            return list(original())

        grid.get_node_ids = look  # type: ignore[method-assign]

    run(tmp_path, grid, "federation.fraction=1.0", then=Between(1, leave))
    lines = read_metrics(tmp_path / "run")
    assert [line["num_users"] for line in lines] == [NUM_USERS] * 6
    assert sum(int(str(line["failures"])) for line in lines) >= 1


def test_a_request_follows_its_shard_to_another_node(
    tmp_path: Path, nodes: FakeNodes, grid: LocalGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node vanishes with its request in hand; Flower would notice a minute later."""
    monkeypatch.setattr("server_app.exchange.WATCH_S", 0.0)
    state = {"swallowed": False}
    original = grid.push_messages

    def push(messages: object) -> list[str]:
        messages = list(messages)  # type: ignore[call-overload]
        accepted = list(original(messages))
        for message in messages:
            meta = message.metadata
            node = list(grid.contexts)[1]
            train = meta.message_type == "train"
            if train and meta.dst_node_id == node and not state["swallowed"]:
                state["swallowed"] = True
                grid._waiting.pop(meta.message_id)
                grid.restart_node(node)
        return accepted

    grid.push_messages = push  # type: ignore[method-assign,assignment]
    run(tmp_path, grid, "federation.fraction=1.0", "federation.rounds=2")
    assert state["swallowed"]
    lines = read_metrics(tmp_path / "run")
    assert [line["num_users"] for line in lines] == [NUM_USERS] * 2
    assert [line["failures"] for line in lines] == [0, 0]


def test_an_older_copy_of_a_shards_state_is_not_admitted(
    tmp_path: Path, nodes: FakeNodes, grid: LocalGrid, caplog: pytest.LogCaptureFixture
) -> None:
    """Its store lacks round 2, which the shard has answered; the node it came from goes on."""

    def copy() -> None:
        new_id, context = grid._context(list(grid.contexts.values())[1].node_config)
        grid.contexts[new_id] = context
        nodes.hello = lambda index, reply: replace(reply, last_round=1)

    with caplog.at_level(logging.WARNING):
        run(tmp_path, grid, "federation.fraction=1.0", then=Between(2, copy))
    assert (
        "has an older copy of its private state (up to round 1, and it has answered" in caplog.text
    )
    assert [line["num_users"] for line in read_metrics(tmp_path / "run")] == [NUM_USERS] * 6


def test_a_resume_refuses_an_older_copy(tmp_path: Path, nodes: FakeNodes, grid: LocalGrid) -> None:
    def fail(index: int, request: Downlink) -> None:
        if request.round == 3:
            raise RuntimeError("no")

    nodes.before_train = fail
    with pytest.raises(RoundError):
        run(tmp_path, grid, "federation.retries=0", "federation.fraction=1.0")
    nodes.before_train = lambda index, request: None
    nodes.trained["shard-1"] = 1
    with pytest.raises(CheckpointError, match=r"shard-1 has an older copy .* answered round 2"):
        run(tmp_path, grid, "resume=true", "federation.fraction=1.0")
    nodes.trained["shard-1"] = 2
    assert run(tmp_path, grid, "resume=true", "federation.fraction=1.0").rounds == 6


def test_an_oversized_reply_is_refused_and_named(
    tmp_path: Path, nodes: FakeNodes, grid: LocalGrid
) -> None:
    nodes.uplink = lambda index, uplink: (
        replace(uplink, metrics={"x" * (1 << 21): 1.0}) if index == 1 else uplink
    )
    with pytest.raises(RoundError, match=r"shard-1.*bytes, more than the \d+ that any reply needs"):
        run(tmp_path, grid)


def test_a_resume_needs_every_shard_that_took_part(
    tmp_path: Path, nodes: FakeNodes, grid: LocalGrid
) -> None:
    def fail(index: int, request: Downlink) -> None:
        if request.round == 3:
            raise RuntimeError("no")

    nodes.before_train = fail
    with pytest.raises(RoundError):
        run(tmp_path, grid, "federation.retries=0")
    nodes.before_train = lambda index, request: None
    node, context = without(grid, 0)
    with pytest.raises(
        NodeError, match="shards shard-0 took part in the run that is to be resumed"
    ):
        run(tmp_path, grid, "federation.min_nodes=2", "resume=true")
    grid.contexts[node] = context  # type: ignore[assignment]
    assert run(tmp_path, grid, "resume=true").rounds == 6
