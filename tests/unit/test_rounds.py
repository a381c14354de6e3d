"""The round loop over an in-process grid with made-up nodes."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_nodes import HITS, NUM_USERS, FakeNodes, tiny_config

from conf.fingerprint import code_fingerprint
from server_app.callbacks import Callback, MetricsLog, RoundRecord, read_metrics
from server_app.checkpoint import load_checkpoint
from server_app.errors import RoundError
from server_app.grid import LocalGrid
from server_app.meter import PARTS
from server_app.results import RunResult, load_result
from server_app.run import run_server
from server_app.run_folder import read_state
from strategies.messages import Downlink, Uplink


def run(tmp_path: Path, nodes: FakeNodes, *overrides: str, name: str = "run") -> RunResult:
    cfg = tiny_config(tmp_path, f"name={name}", *overrides)
    return run_server(LocalGrid(cfg.federation.num_nodes, nodes.app()), cfg)


@pytest.fixture
def nodes() -> FakeNodes:
    return FakeNodes(code_fingerprint())


def test_a_run_trains_every_round_and_reports_the_best_one(
    tmp_path: Path, nodes: FakeNodes
) -> None:
    """Rounds 3 and 6 are evaluated; validation hit rates 0.5 and 0.2 select round 3."""
    result = run(tmp_path, nodes)
    assert (result.selected_round, result.rounds) == (3, 6)
    assert result.metrics["validation/sampled/hr@10"] == pytest.approx(0.5)
    assert result.metrics["test/sampled/hr@10"] == pytest.approx(0.25)
    assert result.popularity is not None
    assert result.popularity["test/full/hr@10"] == pytest.approx(0.1)
    assert [r["round"] for r in read_metrics(result.folder)] == [1, 2, 3, 4, 5, 6]
    assert load_result(result.folder) == result
    assert read_state(result.folder).status == "completed"


def test_cohorts_and_state_rounds(tmp_path: Path, nodes: FakeNodes) -> None:
    """Half of 20 users a round, on the node that hosts them, from the round before."""
    run(tmp_path, nodes)
    for server_round in range(1, 7):
        sent = [(i, d) for i, d in nodes.downlinks if d.round == server_round]
        users = np.concatenate([d.users for _, d in sent])
        assert len(set(users.tolist())) == NUM_USERS // 2
        for index, downlink in sent:
            assert downlink.base_round == server_round - 1
            assert set(downlink.users // (NUM_USERS // 2)) == {index}


def test_kept_rounds_name_the_last_checkpoint_first(tmp_path: Path, nodes: FakeNodes) -> None:
    """Checkpoints at 0, 2, 3 (evaluated), 4 and 6; the newest two can be resumed from."""
    run(tmp_path, nodes)
    kept = {d.round: d.keep_rounds for _, d in nodes.downlinks}
    assert kept[1] == (0,)
    assert kept[2] == (0,)
    assert kept[3] == (2, 0)
    assert kept[4] == (3, 2)
    assert kept[5] == kept[6] == (4, 3)


def test_ties_go_to_the_earlier_round(tmp_path: Path, nodes: FakeNodes) -> None:
    assert HITS[1] == HITS[2] == max(HITS[:4])
    result = run(tmp_path, nodes, "evaluation.every=1", "federation.rounds=4")
    assert result.selected_round == 2


@pytest.mark.parametrize(("select", "selected"), [("best_test", 5), ("last", 6)])
def test_other_rules_of_selection(
    tmp_path: Path, nodes: FakeNodes, select: str, selected: int
) -> None:
    result = run(tmp_path, nodes, "evaluation.every=1", f"protocol.select={select}")
    assert result.selected_round == selected
    assert result.metrics["test/sampled/hr@10"] == pytest.approx(HITS[selected - 1] / 2)


def test_patience_stops_the_run(tmp_path: Path, nodes: FakeNodes) -> None:
    """Evaluated rounds 1, 2, 3, 4: the best is 2, so patience 2 is used up after 4."""
    result = run(tmp_path, nodes, "evaluation.every=1", "evaluation.patience=2")
    assert (result.rounds, result.selected_round, result.early_stopped) == (4, 2, True)


def test_full_ranking_of_the_selected_round_only(tmp_path: Path, nodes: FakeNodes) -> None:
    result = run(tmp_path, nodes, "evaluation.full=selected")
    model = [(s, full) for _, scorer, s, full in nodes.evaluations if scorer == "model"]
    assert model == [(3, False)] * 2 + [(6, False)] * 2 + [(3, True)] * 2
    assert result.metrics["test/full/hr@10"] == pytest.approx(0.25)


def test_full_ranking_never(tmp_path: Path, nodes: FakeNodes) -> None:
    result = run(tmp_path, nodes, "evaluation.full=never")
    assert not any(full for _, _, _, full in nodes.evaluations)
    assert not any("full" in name for name in result.metrics)


def test_the_selected_rounds_parameters_are_kept(tmp_path: Path, nodes: FakeNodes) -> None:
    long = run(tmp_path, nodes, name="long")
    short = run(tmp_path, nodes, "federation.rounds=3", name="short")
    best, final = load_checkpoint(long.folder).best, load_checkpoint(short.folder).shared
    assert best.keys() == final.keys()
    assert all(torch.equal(best[name], final[name]) for name in best)


def test_catalogue_statistics(tmp_path: Path, nodes: FakeNodes) -> None:
    """10 of 12 items are recommended, each to all 20 users; one item (12 // 10) is popular and
    takes one of ten places: coverage 10/12, popularity share 1/10."""
    result = run(tmp_path, nodes)
    assert result.metrics["catalogue/coverage@10"] == pytest.approx(10 / 12)
    assert result.metrics["catalogue/popularity_share@10"] == pytest.approx(0.1)


def test_statistics_can_be_switched_off(tmp_path: Path, nodes: FakeNodes) -> None:
    result = run(tmp_path, nodes, "evaluation.item_statistics=false")
    assert result.popularity is None
    assert not any(name.startswith("catalogue/") for name in result.metrics)
    assert all(scorer == "model" for _, scorer, _, _ in nodes.evaluations)


# ---- sealed test figures -----------------------------------------------------------------
class Witness(Callback):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_evaluate(self, record: object) -> None:
        self.seen.append(repr(record))

    def on_round(self, record: object) -> None:
        self.seen.append(repr(record))


@pytest.mark.parametrize(("protocol", "sealed"), [("strict", True), ("paper", False)])
def test_test_figures_are_sealed_under_validation(
    tmp_path: Path, nodes: FakeNodes, protocol: str, sealed: bool
) -> None:
    witness = Witness()
    cfg = tiny_config(tmp_path, f"protocol={protocol}", "name=run")
    result = run_server(LocalGrid(2, nodes.app()), cfg, [witness])
    shown = (result.folder / "metrics.jsonl").read_text() + "".join(witness.seen)
    assert ("test/" in shown) is not sealed
    assert "test/sampled/hr@10" in (result.folder / "result.json").read_text()


# ---- nodes that fail ---------------------------------------------------------------------
def failing(index: int, rounds: set[int]) -> object:
    def before_train(node: int, downlink: Downlink) -> None:
        if node == index and downlink.round in rounds:
            rounds.discard(downlink.round)
            raise ZeroDivisionError("the node's own words")

    return before_train


def test_a_failing_client_fails_the_run_with_its_error(tmp_path: Path, nodes: FakeNodes) -> None:
    nodes.before_train = failing(1, {4})
    with pytest.raises(RoundError, match=r"round 4: .*shard 'shard-1'.*the node's own words") as e:
        run(tmp_path, nodes)
    assert "Traceback" in str(e.value)
    state = read_state(tmp_path / "run")
    assert state.status == "failed"
    assert "the node's own words" in str(state.error)
    assert not (tmp_path / "run" / "result.json").exists()


def test_retry_asks_only_the_missing_shard_again(tmp_path: Path, nodes: FakeNodes) -> None:
    nodes.before_train = failing(1, {4})
    result = run(tmp_path, nodes, "federation.on_missing=retry")
    asked = [index for index, d in nodes.downlinks if d.round == 4]
    assert asked == [0, 1, 1]
    assert read_metrics(result.folder)[3]["failures"] == 1
    clean = run(tmp_path, FakeNodes(code_fingerprint()), name="clean")
    assert _tensors(result) == _tensors(clean)


def test_retries_are_counted(tmp_path: Path, nodes: FakeNodes) -> None:
    def before_train(node: int, downlink: Downlink) -> None:
        if node == 1:
            raise ZeroDivisionError("always")

    nodes.before_train = before_train
    with pytest.raises(RoundError, match="always"):
        run(tmp_path, nodes, "federation.on_missing=retry", "federation.retries=2")
    assert [index for index, _ in nodes.downlinks] == [0, 1, 1, 1]


def test_continue_needs_at_least_one_reply(tmp_path: Path, nodes: FakeNodes) -> None:
    def before_train(node: int, downlink: Downlink) -> None:
        raise ZeroDivisionError("everyone")

    nodes.before_train = before_train
    with pytest.raises(RoundError, match="everyone"):
        run(tmp_path, nodes, "federation.on_missing=continue")


def test_deadline_and_late_replies(tmp_path: Path, nodes: FakeNodes) -> None:
    """Node 0 works longer than the deadline, so node 1 gets no turn in round 1; what it sends
    in a later round for the first one is dropped and counted."""

    def before_train(node: int, downlink: Downlink) -> None:
        if (node, downlink.round) == (0, 1):
            time.sleep(0.4)

    nodes.before_train = before_train
    overrides = ("federation.deadline_s=0.3", "federation.on_missing=continue")
    result = run(tmp_path, nodes, *overrides)
    lines = read_metrics(result.folder)
    assert lines[0]["num_users"] < NUM_USERS // 2
    assert lines[0]["failures"] == 1
    assert lines[1]["num_users"] == NUM_USERS // 2
    assert sum(int(str(line["dropped_late"])) for line in lines) == 1


def test_a_missing_reply_fails_by_default(tmp_path: Path, nodes: FakeNodes) -> None:
    nodes.before_train = lambda node, downlink: time.sleep(0.4)
    with pytest.raises(RoundError, match=r"'shard-1'.*no reply before the deadline"):
        run(tmp_path, nodes, "federation.deadline_s=0.3")


# ---- replies that are wrong --------------------------------------------------------------
def _broken(uplink: Uplink, what: str) -> Uplink:
    if what == "nan":
        tensors = {n: t.clone() for n, t in uplink.update.tensors.items()}
        tensors["item_gmf"][0, 0] = float("nan")
        return replace(uplink, update=replace(uplink.update, tensors=tensors))
    if what == "shape":
        tensors = {n: t[..., :1] for n, t in uplink.update.tensors.items()}
        return replace(uplink, update=replace(uplink.update, tensors=tensors))
    if what == "users":
        return replace(uplink, num_users=uplink.num_users + 1)
    if what == "round":
        return replace(uplink, round=uplink.round - 1)
    return replace(uplink, shard_key="shard-9")


@pytest.mark.parametrize("what", ["nan", "shape", "users", "round", "key"])
def test_bad_uplinks_are_rejected_and_the_model_untouched(
    tmp_path: Path, nodes: FakeNodes, what: str
) -> None:
    def uplink(index: int, good: Uplink) -> Uplink:
        return _broken(good, what) if index == 1 and good.round == 3 else good

    nodes.uplink = uplink
    with pytest.raises(RoundError, match=r"round 3: .*shard 'shard-[19]'.*rejected"):
        run(tmp_path, nodes, "federation.checkpoint_every=1")
    before = load_checkpoint(tmp_path / "run")
    clean = run(tmp_path, FakeNodes(code_fingerprint()), "federation.rounds=2", name="clean")
    assert before.round == 2
    after = load_checkpoint(clean.folder).shared
    assert all(torch.equal(before.shared[n], after[n]) for n in after)


def test_a_step_that_overflows_is_refused(tmp_path: Path, nodes: FakeNodes) -> None:
    def uplink(index: int, good: Uplink) -> Uplink:
        tensors = {n: torch.full_like(t, 3e38) for n, t in good.update.tensors.items()}
        return replace(good, update=replace(good.update, tensors=tensors))

    nodes.uplink = uplink
    with pytest.raises(RoundError, match="round 1: the server's step makes"):
        run(tmp_path, nodes)


# ---- nodes that come back ----------------------------------------------------------------
def test_a_restarted_node_carries_on_with_its_shard(tmp_path: Path, nodes: FakeNodes) -> None:
    cfg = tiny_config(tmp_path, "name=run", "federation.on_missing=retry")
    grid = LocalGrid(2, nodes.app())

    def before_train(node: int, downlink: Downlink) -> None:
        if (node, downlink.round) == (0, 3):
            grid.restart_node(list(grid.contexts)[1])

    nodes.before_train = before_train
    result = run_server(grid, cfg)
    clean = run(tmp_path, FakeNodes(code_fingerprint()), name="clean")
    assert _tensors(result) == _tensors(clean)


def test_a_node_that_returns_with_other_code_is_not_admitted(
    tmp_path: Path, nodes: FakeNodes
) -> None:
    grid = LocalGrid(2, nodes.app())

    def before_train(node: int, downlink: Downlink) -> None:
        if (node, downlink.round) == (0, 3):
            grid.restart_node(list(grid.contexts)[1])
            nodes.code = "edited"

    nodes.before_train = before_train
    with pytest.raises(RoundError, match=r"not admitted.*other code.*edited"):
        run_server(grid, tiny_config(tmp_path, "name=run", "federation.on_missing=retry"))


def test_metrics_lines_hold_what_a_follower_needs(tmp_path: Path, nodes: FakeNodes) -> None:
    result = run(tmp_path, nodes)
    line = json.loads((result.folder / "metrics.jsonl").read_text().splitlines()[2])
    assert line["train"] == {"loss": pytest.approx(0.5)}
    assert line["bytes_up"] > 0
    assert line["bytes_down"] > line["bytes_up"] / 10
    assert list(line["seconds"]) == list(PARTS)
    assert line["evaluation"]["validation/sampled/hr@10"] == pytest.approx(0.5)
    assert line["selected_round"] == 3


def _tensors(result: RunResult) -> bytes:
    path = sorted((result.folder / "checkpoint").glob("round-*"))[-1]
    return (path / "tensors.safetensors").read_bytes()


def test_a_record_that_is_no_json_is_never_written(tmp_path: Path, nodes: FakeNodes) -> None:
    """NaN and infinities are no JSON: readers other than Python's refuse them."""
    result = run(tmp_path, nodes, "federation.rounds=1")
    record = RoundRecord(**read_metrics(result.folder)[0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not JSON compliant"):
        MetricsLog(result.folder).on_round(replace(record, train={"loss": float("nan")}))
    assert len(read_metrics(result.folder)) == 1
