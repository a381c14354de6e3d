"""Failures of nodes: absent ones are tolerated by policy, failing clients fail the run."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_nodes import NUM_ITEMS, NUM_USERS, FakeNodes, tiny_config
from flwr.app import Message

from conf.fingerprint import code_fingerprint
from conf.tree import FederationConfig
from server_app.callbacks import read_metrics
from server_app.errors import ClientsFailedError, RoundError
from server_app.exchange import Courier
from server_app.gather import Gatherer
from server_app.grid import LocalGrid
from server_app.nodes import NodeDirectory
from server_app.results import RunResult, load_result
from server_app.run import run_server
from server_app.run_folder import read_state
from strategies import wire
from strategies.hooks import Failure
from strategies.messages import ITEM_COUNTS, Downlink, EvaluateReply, EvaluateRequest, Header

HALF = "federation.min_share=0.1"
"""Some users of every cohort are on each node; either node alone is a tenth of it."""
CONTINUE = "federation.on_missing=continue"


def run(tmp_path: Path, nodes: FakeNodes, *overrides: str) -> RunResult:
    cfg = tiny_config(tmp_path, "name=run", *overrides)
    return run_server(LocalGrid(cfg.federation.num_nodes, nodes.app()), cfg)


@pytest.fixture
def nodes() -> FakeNodes:
    return FakeNodes(code_fingerprint())


def raise_in_rounds(nodes: FakeNodes, *rounds: int) -> None:
    def before_train(index: int, downlink: Downlink) -> None:
        if index == 1 and downlink.round in rounds:
            raise ZeroDivisionError("the node's own words")

    nodes.before_train = before_train


# ---- training ----------------------------------------------------------------------------
@pytest.mark.parametrize("policy", [HALF, CONTINUE])
def test_failing_clients_fail_the_run_after_its_result_is_written(
    tmp_path: Path, nodes: FakeNodes, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    raise_in_rounds(nodes, 2, 4)
    expected = (
        r"^all 6 rounds were trained, but clients failed 2 times; first: shard 'shard-1' "
        r"\(node \d+\): client error: ZeroDivisionError: the node's own words$"
    )
    with pytest.raises(ClientsFailedError, match=expected):
        run(tmp_path, nodes, policy)
    folder = tmp_path / "run"
    state = read_state(folder)
    assert (state.status, state.has_result) == ("failed", True)
    assert "clients failed 2 times" in str(state.error)
    lines = read_metrics(folder)
    assert [line["failures"] for line in lines] == [0, 1, 0, 1, 0, 0]
    sent = {index: len(d.users) for index, d in nodes.downlinks if d.round == 4}  # type: ignore[arg-type]
    assert lines[3]["num_users"] == sent[0]
    totals = load_result(folder).totals
    assert (totals["failures"], totals["client_errors"]) == (2, 2)
    assert logged(caplog, "round 4, attempt 1 of 1: shard 'shard-1'") == 1


def test_a_rejected_reply_is_a_failing_client(tmp_path: Path, nodes: FakeNodes) -> None:
    nodes.uplink = lambda index, good: (
        replace(good, num_users=good.num_users + 1) if (index, good.round) == (1, 4) else good
    )
    with pytest.raises(ClientsFailedError, match=r"once; .*'shard-1'.*rejected: trained"):
        run(tmp_path, nodes, HALF)


def test_a_failure_that_a_retry_repairs_is_counted_but_fails_nothing(
    tmp_path: Path, nodes: FakeNodes
) -> None:
    rounds = {4}

    def before_train(index: int, downlink: Downlink) -> None:
        if index == 1 and downlink.round in rounds:
            rounds.clear()
            raise ZeroDivisionError

    nodes.before_train = before_train
    result = run(tmp_path, nodes, "federation.on_missing=retry")
    assert (result.totals["failures"], result.totals["client_errors"]) == (1, 0)


def test_a_resumed_run_remembers_the_failures_before(tmp_path: Path, nodes: FakeNodes) -> None:
    raise_in_rounds(nodes, 2)
    with pytest.raises(ClientsFailedError):
        run(tmp_path, nodes, HALF)
    with pytest.raises(ClientsFailedError, match=r"all 8 rounds .* once"):
        run(tmp_path, nodes, HALF, "federation.rounds=8", "resume=true")


def test_a_silent_node_is_tolerated(
    tmp_path: Path, nodes: FakeNodes, caplog: pytest.LogCaptureFixture
) -> None:
    """Node 0 works longer than the deadline, so node 1 gets no turn in round 1."""
    nodes.before_train = lambda index, d: time.sleep(0.4 if (index, d.round) == (0, 1) else 0)
    result = run(tmp_path, nodes, HALF, "federation.deadline_s=0.3")
    assert (result.totals["failures"], result.totals["client_errors"]) == (1, 0)
    assert logged(caplog, "shard 'shard-1' (node") == 1
    assert read_state(tmp_path / "run").status == "completed"


def test_a_node_that_goes_away_is_tolerated(tmp_path: Path, nodes: FakeNodes) -> None:
    """Node 1 goes while node 0 trains round 3, and is back under another id for the next."""
    cfg = tiny_config(tmp_path, "name=run", HALF)
    grid = LocalGrid(2, nodes.app())

    def before_train(index: int, downlink: Downlink) -> None:
        if (index, downlink.round) == (0, 3):
            grid.restart_node(list(grid.contexts)[1])

    nodes.before_train = before_train
    result = run_server(grid, cfg)
    assert [line["failures"] for line in read_metrics(result.folder)] == [0, 0, 1, 0, 0, 0]
    assert result.totals["client_errors"] == 0


# ---- evaluation --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("scorer", "state_round", "line"), [("popularity", 0, 0), ("model", 3, 2), ("model", 6, 5)]
)
def test_failures_of_an_evaluation_count(
    tmp_path: Path, nodes: FakeNodes, scorer: str, state_round: int, line: int
) -> None:
    """Popularity is ranked before the first round and counts to it."""

    def before_evaluate(index: int, request: EvaluateRequest) -> None:
        if (index, request.scorer, request.state_round) == (1, scorer, state_round):
            raise ZeroDivisionError("in the evaluation")

    nodes.before_evaluate = before_evaluate
    with pytest.raises(ClientsFailedError, match=r"shard-1.*in the evaluation"):
        run(tmp_path, nodes, HALF)
    failures = [record["failures"] for record in read_metrics(tmp_path / "run")]
    assert failures == [int(i == line) for i in range(6)]


def test_failures_after_the_last_round_count(tmp_path: Path, nodes: FakeNodes) -> None:
    """Full ranking of the selected round comes after all rounds; half of the users remain."""

    def before_evaluate(index: int, request: EvaluateRequest) -> None:
        if index == 1 and request.full and request.scorer == "model":
            raise ZeroDivisionError("at the very end")

    nodes.before_evaluate = before_evaluate
    with pytest.raises(ClientsFailedError, match="at the very end"):
        run(tmp_path, nodes, HALF, "evaluation.full=selected")
    result = load_result(tmp_path / "run")
    assert result.totals["failures"] == 1
    assert result.counts["test/full/hr@10"] == NUM_USERS / 2


def _broken(reply: EvaluateReply, what: str) -> EvaluateReply:
    name = "test/sampled/hr@10"
    metrics, counts, exposure_I = dict(reply.metrics), dict(reply.counts), reply.exposure_I
    users = int(counts[name])
    if what in ("nan", "inf", "below", "above"):
        bad = {"nan": np.nan, "inf": np.inf, "below": -0.1, "above": users + 0.1}
        metrics[name] = float(bad[what])
    elif what in ("no users", "half a user", "many users", "no count"):
        counts |= {name: {"no users": -1.0, "half a user": 0.5}.get(what, users + 1.0)}
        if what == "no count":
            del counts[name]
    elif what == "renamed":
        metrics["test/sampled/hit@10"], counts["test/sampled/hit@10"] = 0.0, 0.0
    elif what == "absent":
        del metrics[name], counts[name]
    elif what == "no exposure":
        exposure_I = None
    elif what == "short exposure":
        exposure_I = np.zeros(NUM_ITEMS - 1, np.int64)
    elif what == "negative exposure":
        exposure_I = np.full(NUM_ITEMS, -1)
    elif what == "high exposure":
        exposure_I = np.full(NUM_ITEMS, users + 1)
    elif what == "much exposure":
        exposure_I = np.full(NUM_ITEMS, users)
    else:
        raise AssertionError(what)
    return replace(reply, metrics=metrics, counts=counts, exposure_I=exposure_I)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("nan", "must be a finite number, got nan"),
        ("inf", "must be a finite number, got inf"),
        ("below", r"test/sampled/hr@10 is not a sum of values within \[0, 1\]"),
        ("above", r"test/sampled/hr@10 is not a sum of values within \[0, 1\]"),
        ("no users", "test/sampled/hr@10 has -1 users of a shard of 10"),
        ("half a user", "test/sampled/hr@10 has 0.5 users"),
        ("many users", "test/sampled/hr@10 has 11 users of a shard of 10"),
        ("no count", "test/sampled/hr@10 has no number of users"),
        ("renamed", "test/sampled/hit@10 was not asked for"),
        ("absent", "test/sampled/hr@10 is missing"),
        ("no exposure", "exposure is missing"),
        ("short exposure", "exposure has 11 items instead of 12"),
        ("negative exposure", "exposure of an item is not within 0 and the shard's 10 users"),
        ("high exposure", "exposure of an item is not within 0 and the shard's 10 users"),
        ("much exposure", "exposure has more than 10 places a user"),
    ],
)
def test_evaluation_replies_that_cannot_be_true_are_rejected(
    tmp_path: Path, nodes: FakeNodes, what: str, reason: str
) -> None:
    nodes.evaluation = lambda index, reply: _broken(reply, what) if index else reply
    with pytest.raises(RoundError, match=f"shard 'shard-1'.*rejected: .*{reason}"):
        run(tmp_path, nodes)


def test_exposure_that_was_not_asked_for_is_rejected(tmp_path: Path, nodes: FakeNodes) -> None:
    nodes.evaluation = lambda index, reply: replace(reply, exposure_I=np.zeros(12, np.int64))
    with pytest.raises(RoundError, match="rejected: exposure was not asked for"):
        run(tmp_path, nodes, "evaluation.item_statistics=false")


def test_a_shard_without_heldout_items_has_no_metrics(tmp_path: Path, nodes: FakeNodes) -> None:
    nodes.evaluation = lambda index, reply: (
        replace(reply, metrics={}, counts={}) if index else reply
    )
    result = run(tmp_path, nodes)
    assert result.counts["test/sampled/hr@10"] == NUM_USERS / 2


# ---- the policy and late replies ---------------------------------------------------------
def test_the_share_is_compared_in_decimal(nodes: FakeNodes) -> None:
    """7 of 100 users are a share of 0.07, though 0.07 * 100 is above 7 in binary floats."""
    assert 0.07 * 100 > 7
    grid, header = LocalGrid(2, nodes.app()), Header("run", 0, "{}", code_fingerprint())
    federation = FederationConfig(min_share=0.07, on_missing="fail")
    directory = NodeDirectory(Courier(grid), header, federation)
    directory.register()
    gatherer = Gatherer(directory, Courier(grid), federation)

    def ask(outstanding: frozenset[str]) -> list[Message]:
        content = wire.encode_request(header)
        return [Message(content, directory.node("shard-0"), ITEM_COUNTS, group_id="items")]

    def collect(replies: object) -> tuple[list[EvaluateReply], list[Failure]]:
        return [EvaluateReply("shard-0", 1, {}, {}, None, 0.0)], []

    users_of = {"shard-0": 7, "shard-1": 93}
    gatherer.gather("a share", users_of, ask, collect, lambda reply: None)


def test_nothing_more_is_awaited_from_nodes_that_are_gone(nodes: FakeNodes) -> None:
    class Hanging(LocalGrid):
        asked: tuple[str, ...] = ()

        def pull_messages(self, message_ids: object) -> list[Message]:
            self.asked = tuple(message_ids)  # type: ignore[arg-type]
            return []

    grid = Hanging(2, nodes.app())
    courier = Courier(grid)
    content = wire.encode_request(Header("run", 0, "{}"))

    def exchange() -> int:
        targets = grid.get_node_ids()
        courier.exchange([Message(content, node, ITEM_COUNTS) for node in targets], 0.0)
        return len(grid.asked)

    assert [exchange(), exchange()] == [2, 4]
    grid.restart_node(next(iter(grid.contexts)))
    # Of the four late ones two are from the node that is still there.
    assert exchange() == 4


def logged(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)
