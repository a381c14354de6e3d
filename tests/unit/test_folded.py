"""An evaluation that rides on the next round's training messages, in a deployment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_nodes import FakeNodes, tiny_config

from conf.fingerprint import code_fingerprint
from server_app.callbacks import read_metrics
from server_app.checkpoint import load_checkpoint
from server_app.errors import RoundError
from server_app.grid import LocalGrid
from server_app.results import RunResult
from server_app.run import run_server
from strategies.messages import Downlink, EvaluateReply

DEPLOYED = ["federation.grid=deployment", "federation.fraction=1.0"]
SETTINGS = ["federation.num_nodes=3", "federation.rounds=8", "evaluation.every=3"]


@pytest.fixture
def nodes() -> FakeNodes:
    return FakeNodes(code_fingerprint())


def run(tmp_path: Path, nodes: FakeNodes, *overrides: str, name: str = "run") -> RunResult:
    cfg = tiny_config(tmp_path, *SETTINGS, *overrides, f"name={name}")
    return run_server(LocalGrid(3, nodes.app()), cfg)


def files(tmp_path: Path, name: str) -> list[bytes]:
    folder = tmp_path / name / "checkpoint" / "round-000000008"
    return [(folder / f"{part}.safetensors").read_bytes() for part in ("tensors", "best")]


def test_same_result_with_fewer_exchanges(tmp_path: Path, nodes: FakeNodes) -> None:
    """Rounds 3 and 6 ride on rounds 4 and 7, 8 is the last; the selected round is 3 (0.5)."""
    folded = run(tmp_path, nodes, *DEPLOYED)
    assert nodes.folded == [(node, base) for base in (3, 6) for node in (0, 1, 2)]
    asked = {(r, scorer) for _, scorer, r, _ in nodes.evaluations}
    assert asked == {(0, "popularity"), (3, "model"), (6, "model"), (8, "model")}
    plain = run(tmp_path, FakeNodes(code_fingerprint()), "federation.fraction=1.0", name="plain")
    assert files(tmp_path, "run") == files(tmp_path, "plain")
    assert (folded.selected_round, folded.metrics) == (plain.selected_round, plain.metrics)
    lines = read_metrics(tmp_path / "run")
    assert [line["evaluated_round"] for line in lines] == [None] * 3 + [3, None, None, 6, 8]
    assert [line["evaluated_round"] for line in read_metrics(tmp_path / "plain")] == [
        *(None, None, 3, None, None, 6, None, 8)
    ]


def test_nodes_without_users_in_the_cohort_are_asked_by_themselves(
    tmp_path: Path, nodes: FakeNodes
) -> None:
    """One user a round: one node carries the ranking, two are asked for it."""
    run(tmp_path, nodes, DEPLOYED[0], "federation.fraction=0.05")
    assert len(nodes.folded) == 2
    for base in (3, 6):
        ranked = [
            node for node, scorer, r, _ in nodes.evaluations if (scorer, r) == ("model", base)
        ]
        assert sorted(ranked) == [0, 1, 2]


@pytest.mark.parametrize("setting", ["evaluation.patience=9", "evaluation.every=1"])
def test_where_it_is_not_folded(tmp_path: Path, nodes: FakeNodes, setting: str) -> None:
    run(tmp_path, nodes, *DEPLOYED, setting)
    assert nodes.folded == []


def test_a_false_evaluation_makes_the_reply_unusable(tmp_path: Path, nodes: FakeNodes) -> None:
    def evaluation(index: int, reply: EvaluateReply) -> EvaluateReply:
        wrong = index == 1 and reply.round == 3
        return replace(reply, counts=dict.fromkeys(reply.counts, 99.0)) if wrong else reply

    nodes.evaluation = evaluation
    with pytest.raises(RoundError, match=r"shard-1.*rejected: .* has 99 users of a shard of 7"):
        run(tmp_path, nodes, *DEPLOYED)


def test_a_resume_before_the_ranking_arrived_asks_for_it(tmp_path: Path, nodes: FakeNodes) -> None:
    def fail(index: int, request: Downlink) -> None:
        if request.round == 4:
            raise RuntimeError("no")

    nodes.before_train = fail
    with pytest.raises(RoundError):
        run(tmp_path, nodes, *DEPLOYED)
    stopped = load_checkpoint(tmp_path / "run")
    assert (stopped.round, stopped.evaluation_due, stopped.selection.round) == (3, True, None)
    nodes.before_train = lambda index, request: None
    resumed = run(tmp_path, nodes, *DEPLOYED, "resume=true")
    plain = run(tmp_path, FakeNodes(code_fingerprint()), *DEPLOYED, name="plain")
    assert files(tmp_path, "run") == files(tmp_path, "plain")
    assert (resumed.selected_round, resumed.metrics) == (plain.selected_round, plain.metrics)
