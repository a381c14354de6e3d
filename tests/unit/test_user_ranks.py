"""Each user's ranks: counting them, their record, what the server refuses, their file."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_run
from fake_nodes import FakeNodes, tiny_config
from flwr.app import Array
from hypothesis import given
from hypothesis import strategies as st
from test_evaluation import CUTOFFS, DATA, EVERYONE, NUM_CANDIDATES, NUM_ITEMS, scores_of

from client_app.evaluation import evaluate
from client_app.node_config import NodeError
from client_app.runtime import open_node
from conf.build import ConfigError
from conf.fingerprint import code_fingerprint
from conf.tree import to_json
from models.types import UserRanks
from server_app.errors import RoundError, StorageError
from server_app.grid import LocalGrid
from server_app.rank_check import ranks_problem
from server_app.run import run_server
from server_app.user_ranks import (
    load_ranks,
    load_user_ranks,
    metrics_of,
    save_ranks,
    save_user_ranks,
    together,
)
from strategies import wire
from strategies.codec import WireError
from strategies.messages import EvaluateReply, Header

ON = "evaluation.user_ranks=true"
PLACES = {"sampled": 11, "full": 40}


def array(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


RANKS = UserRanks(array(2, 5, 9), {"test/sampled": array(0, -1, 10), "test/full": array(3, -1, 39)})
METRICS = {"test/sampled/hr@10": 1.0, "test/full/hr@10": 1.0, "test/full/ndcg@10": 0.5}
REPLY = EvaluateReply("s", 4, METRICS, dict.fromkeys(METRICS, 2.0), None, 0.1, RANKS)


@pytest.mark.parametrize("block", [1, 4, 100])
def test_ranks_are_those_of_a_plain_count(block: int) -> None:
    scores_UI = scores_of(ties=True)
    got = evaluate(lambda users: scores_UI[users], DATA, EVERYONE, CUTOFFS, True, block).ranks
    assert {len(ranks_U) for ranks_U in got.values()} == {len(EVERYONE)}
    for user in EVERYONE.tolist():
        held, row = int(DATA.test_U[user]), scores_UI[user].tolist()
        rivals = DATA.test_candidates_UC[user].tolist()
        beaten_by = sum(row[item] >= row[held] for item in rivals)
        assert got["test/sampled"][user] == (-1 if held < 0 else beaten_by)
    assert got["test/full"][0] == got["test/sampled"][0] == -1  # user 0 has no test item
    assert got["validation/full"][1] == -1  # user 1 no validation item
    assert got["test/sampled"].max() <= NUM_CANDIDATES and got["test/full"].max() < NUM_ITEMS


def test_ranks_of_some_users_stand_in_their_order() -> None:
    scores_UI = scores_of(ties=False)
    whole = evaluate(lambda users: scores_UI[users], DATA, EVERYONE, CUTOFFS, True, 4).ranks
    some = array(3, 7, 20)
    part = evaluate(lambda users: scores_UI[users], DATA, some, CUTOFFS, True, 2).ranks
    for kind, ranks_U in whole.items():
        assert np.array_equal(part[kind], ranks_U[some])


def test_metrics_of_ranks_by_hand() -> None:
    """Ranks 1 and 11, one user without an item: HR@10 1/2, NDCG@20 (1 + 1/log2 12)/2."""
    got = metrics_of(RANKS, (10, 20))
    assert got["test/sampled/hr@10"] == 0.5
    assert got["test/sampled/mrr@20"] == pytest.approx((1 + 1 / 11) / 2, rel=1e-15)
    assert got["test/sampled/ndcg@20"] == pytest.approx((1 + 1 / math.log2(12)) / 2, rel=1e-15)


def test_parts_of_several_nodes_become_one_by_ascending_user() -> None:
    """The second shard has no user with a test item, so it lacks that kind of ranking."""
    other = UserRanks(array(1, 7), {})
    got = together([RANKS, other])
    assert got is not None and got.users_U.tolist() == [1, 2, 5, 7, 9]
    assert got.ranks["test/sampled"].tolist() == [-1, 0, -1, -1, 10]
    assert together([]) is None


def test_record_round_trip() -> None:
    back = wire.decode_evaluate_reply(wire.encode_evaluate_reply(REPLY)).ranks
    assert back is not None and back.users_U.tolist() == [2, 5, 9]
    assert {n: r.tolist() for n, r in back.ranks.items()} == {
        "test/sampled": [0, -1, 10],
        "test/full": [3, -1, 39],
    }
    content = wire.encode_evaluate_reply(replace(REPLY, ranks=None))
    assert "user-ranks" not in content
    assert wire.decode_evaluate_reply(content).ranks is None


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("users", array(5, 2, 9), "must ascend"),
        ("test/full", array(1, 2), "2 ranks test/full of 3 users"),
        ("test/full", np.zeros(3, np.int32), "must be a vector of int64"),
    ],
)
def test_a_false_record_is_refused(name: str, value: np.ndarray, reason: str) -> None:
    content = wire.encode_evaluate_reply(REPLY)
    content.array_records["user-ranks"][name] = Array(value)
    with pytest.raises(WireError, match=reason):
        wire.decode_evaluate_reply(content)


def changed(**vectors: np.ndarray) -> EvaluateReply:
    users_U = vectors.pop("users", RANKS.users_U)
    ranks = {**RANKS.ranks, **{n.replace("_", "/"): v for n, v in vectors.items()}}
    return replace(REPLY, ranks=UserRanks(users_U, ranks))


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (replace(REPLY, ranks=None), "each user's ranks are missing"),
        (changed(users=array(2, 5, 8)), "not those of the users asked for"),
        (changed(validation_full=array(1, 1, 1)), "do not both have validation/full"),
        (changed(test_full=array(3, -1, 40)), "test/full are not all within"),
        (changed(test_sampled=array(0, -1, 11)), "test/sampled are not all within"),
        (changed(test_full=array(3, -2, 39)), "test/full are not all within"),
        (changed(test_full=array(3, 20, 39)), "not of as many users"),
        (changed(test_full=array(3, -1, 9)), "contradict test/full/hr@10"),
    ],
)
def test_the_server_refuses_ranks_that_cannot_be_true(reply: EvaluateReply, reason: str) -> None:
    assert ranks_problem(REPLY, array(9, 2, 5), PLACES) is None
    assert reason in (ranks_problem(reply, array(2, 5, 9), PLACES) or "")


def test_ranks_that_were_not_asked_for_are_refused() -> None:
    assert ranks_problem(replace(REPLY, ranks=None), None, PLACES) is None
    assert "not asked for" in (ranks_problem(REPLY, None, PLACES) or "")


@given(
    users=st.lists(st.integers(0, 10**12), unique=True, min_size=1, max_size=30).map(sorted),
    seed=st.integers(0, 2**32),
)
def test_files_give_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, users: list[int], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("ranks")
    drawn_U = np.random.default_rng(seed).integers(-1, 2**40, len(users))
    ranks = UserRanks(array(*users), {"test/full": drawn_U})
    save_ranks(folder / "a.npz", ranks)
    save_user_ranks(folder, {"model": ranks})
    found = load_user_ranks(folder)
    assert found is not None and found.keys() == {"model"}
    for back in (load_ranks(folder / "a.npz"), found["model"]):
        assert np.array_equal(back.users_U, ranks.users_U)
        assert np.array_equal(back.ranks["test/full"], drawn_U)


def test_equal_ranks_give_equal_bytes_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_ranks(tmp_path / "a.npz", RANKS)
    monkeypatch.setattr("time.time", lambda: 2e9)
    save_ranks(tmp_path / "b.npz", UserRanks(RANKS.users_U, dict(reversed(RANKS.ranks.items()))))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_files_that_are_none(tmp_path: Path) -> None:
    assert load_user_ranks(tmp_path) is None
    save_ranks(tmp_path / "whole.npz", RANKS)
    data = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "user_ranks.npz").write_bytes(data[:-30])
    with pytest.raises(StorageError, match=r"user_ranks\.npz cannot be read"):
        load_user_ranks(tmp_path)
    np.savez(tmp_path / "other.npz", users=np.zeros(3))
    with pytest.raises(StorageError, match="holds no users' ranks"):
        load_ranks(tmp_path / "other.npz")
    with pytest.raises(StorageError, match="cannot be read"):
        load_ranks(tmp_path / "absent.npz")


def test_a_deployment_refuses_at_the_server(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.user_ranks=true is for simulations"):
        tiny_run.config(tmp_path, ON, "federation.grid=deployment")


def test_a_node_refuses_what_the_server_should_not_have_asked(tmp_path: Path) -> None:
    """Once the configuration is one of a deployment, once it only claims to be none."""
    cfg = tiny_run.config(tmp_path, ON)
    plain = {"partition-id": 0, "num-partitions": 1}
    claimed = tiny_run.header(cfg)
    assert open_node(plain, claimed).cfg.evaluation.user_ranks
    text = to_json(replace(cfg, federation=replace(cfg.federation, grid="deployment")))
    with pytest.raises(ConfigError, match="is for simulations"):
        open_node(plain, Header("run", 0, text, code_fingerprint()))
    for key in ("store-path", "cache-path", "data-path"):
        value = str(cfg.dataset.path if key == "data-path" else tmp_path / "own")
        with pytest.raises(NodeError, match=f"has a {key} of its own and does not give"):
            open_node({**plain, key: value}, claimed)


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_what_a_node_replies(tmp_path: Path, folded: bool, asked: bool) -> None:
    """Also with a training request that asks for the ranking of the round before."""
    cfg = tiny_run.config(tmp_path, "model.factors=4", *([ON] if asked else []))
    head, shared, grid = tiny_run.header(cfg), tiny_run.shared(cfg), LocalGrid(1)
    shared = {name: tensor * 10 for name, tensor in shared.items()}
    if folded:
        request = tiny_run.downlink(head, shared, [3, 4])
        request = replace(request, evaluate="full", ranked=array(1, 5, 8))
        found = wire.decode_uplink(tiny_run.train(grid, request).content, shared).evaluation
    else:
        ranking = replace(tiny_run.evaluation(head, shared), users=array(1, 5, 8))
        reply = tiny_run.ask(grid, "evaluate", wire.encode_evaluate(ranking))
        found = wire.decode_evaluate_reply(reply.content)
    assert found is not None and (found.ranks is not None) == asked
    if found.ranks is not None:
        assert ranks_problem(found, array(1, 5, 8), PLACES) is None
        means = {name: value / found.counts[name] for name, value in found.metrics.items()}
        assert metrics_of(found.ranks, cfg.evaluation.cutoffs) == pytest.approx(means, rel=1e-14)


def test_nodes_that_send_none_fail_the_run(tmp_path: Path) -> None:
    cfg = tiny_config(tmp_path, "name=run", ON)
    with pytest.raises(RoundError, match="each user's ranks are missing"):
        run_server(LocalGrid(2, FakeNodes(code_fingerprint()).app()), cfg)
