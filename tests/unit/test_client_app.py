"""The ClientApp as a server sees it: replies, idempotency, resume, privacy, refusals."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_run
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from client_app import runtime
from client_app.recommend import known_items, recommend
from client_app.store_file import StoreError
from client_app.training import to_bytes
from conf.tree import Config, to_json
from models.types import Tensors
from server_app.grid import LocalGrid
from strategies import wire
from strategies.bundle import bundled, is_bundled, unbundled
from strategies.codec import from_arrays, to_arrays
from strategies.messages import HELLO, ITEM_COUNTS, HelloRequest, Uplink

SMALL = ("model.factors=4",)


@pytest.fixture
def cfg(tmp_path: Path) -> Config:
    return tiny_run.config(tmp_path, *SMALL)


def content(reply: Message) -> RecordDict:
    assert not reply.has_error(), reply.error.reason
    return reply.content


def refused(reply: Message) -> str:
    assert reply.has_error()
    return str(reply.error.reason)


def uplink(reply: Message, template: Tensors) -> Uplink:
    return wire.decode_uplink(content(reply), template)


# ---- replies -----------------------------------------------------------------------------
def test_hello_covers_every_user_once(cfg: Config) -> None:
    grid = LocalGrid(3)
    request = wire.encode_hello_request(HelloRequest(tiny_run.header(cfg)))
    replies = [wire.decode_hello(content(tiny_run.ask(grid, HELLO, request, i))) for i in range(3)]
    assert [r.shard_key for r in replies] == [f"00000{i}-of-000003" for i in range(3)]
    np.testing.assert_array_equal(np.concatenate([r.users for r in replies]), np.arange(20))
    dataset = tiny_run.node(cfg).dataset
    assert {(r.data, r.catalogue, r.num_items, r.code) for r in replies} == {
        (dataset.fingerprint, dataset.catalogue, 40, tiny_run.header(cfg).code)
    }


def test_item_counts_are_of_the_nodes_users(cfg: Config) -> None:
    grid, dataset = LocalGrid(2), tiny_run.node(cfg).dataset
    request = wire.encode_request(tiny_run.header(cfg))
    counts_I = [
        wire.decode_item_counts(content(tiny_run.ask(grid, ITEM_COUNTS, request, i)), 40)
        for i in range(2)
    ]
    first = np.concatenate([dataset.train_of(user) for user in range(10)])
    np.testing.assert_array_equal(counts_I[0], np.bincount(first, minlength=40))
    np.testing.assert_array_equal(sum(counts_I), np.bincount(dataset.train_items, minlength=40))


def test_a_lost_store_is_an_error_and_not_a_fresh_start(cfg: Config) -> None:
    """Users whose private state is gone must not be trained from their initial state unnoticed."""
    grid, shared, head = LocalGrid(1), tiny_run.shared(cfg), tiny_run.header(cfg)
    greeting = wire.encode_hello_request(HelloRequest(head))
    later = wire.encode_hello_request(HelloRequest(head, may_start=False))
    first = wire.decode_hello(content(tiny_run.ask(grid, HELLO, greeting)))
    content(tiny_run.train(grid, tiny_run.downlink(head, shared, [1, 2])))
    again = wire.decode_hello(content(tiny_run.ask(grid, HELLO, later)))
    assert (first.new_run, again.new_run) == (True, False)
    for path in Path(cfg.output, "tiny", "nodes").iterdir():
        path.unlink()
    request = wire.encode_downlink(tiny_run.downlink(head, shared, [1, 2], round_=2))
    reason = refused(tiny_run.ask(grid, "train", request, greet=False))
    assert "StoreError" in reason and "removed or replaced" in reason
    for _ in range(2):  # saying hello does not make it known
        assert wire.decode_hello(content(tiny_run.ask(grid, HELLO, later))).new_run


def test_only_the_cohorts_rows_are_written(cfg: Config) -> None:
    grid, shared = LocalGrid(1), tiny_run.shared(cfg)
    reply = tiny_run.train(grid, tiny_run.downlink(tiny_run.header(cfg), shared, [4, 2, 11]))
    assert uplink(reply, shared).num_users == 3
    state = tiny_run.node(cfg).state
    has_row_U, _ = state.store.read("run", np.arange(20), 1)
    assert np.flatnonzero(has_row_U).tolist() == [2, 4, 11]
    moved_U = (state.rows(np.arange(20), 1) != state.rows(np.arange(20), 0)).any(axis=1)
    assert np.flatnonzero(moved_U).tolist() == [2, 4, 11]


def test_evaluation_scores_the_requested_round(cfg: Config) -> None:
    """Training moves the private state, so rounds 0 and 1 rank differently under one table."""
    grid, shared = LocalGrid(1), tiny_run.shared(cfg)
    shared = {n: t * 10 for n, t in shared.items()}
    head = tiny_run.header(cfg)

    def metrics(state_round: int, full: bool = True) -> dict[str, float]:
        request = tiny_run.evaluation(head, shared, state_round, full=full)
        reply = tiny_run.ask(grid, "evaluate", wire.encode_evaluate(request))
        return wire.decode_evaluate_reply(content(reply)).metrics

    before = metrics(0)
    content(tiny_run.train(grid, tiny_run.downlink(head, shared, list(range(20)))))
    assert metrics(0) == before
    assert metrics(1) != before
    # Sampled candidates alone give the same figures as picked from the full scores.
    sampled = metrics(1, full=False)
    assert sampled and all("/sampled/" in name for name in sampled)
    assert {n: v for n, v in metrics(1).items() if n in sampled} == pytest.approx(sampled)


def test_popularity_ranks_by_the_counts_it_is_sent(cfg: Config) -> None:
    grid, dataset = LocalGrid(1), tiny_run.node(cfg).dataset
    held = dataset.test_U[0]
    counts_I = torch.zeros(40, dtype=torch.int64)
    counts_I[held] = 5
    request = tiny_run.evaluation(
        tiny_run.header(cfg), {"item_counts": counts_I}, scorer="popularity"
    )
    reply = tiny_run.ask(grid, "evaluate", wire.encode_evaluate(request))
    metrics = wire.decode_evaluate_reply(content(reply)).metrics
    # Whose held-out item is the only one with a count is ranked first; all others tie at zero
    # against nine or more candidates and lose every tie.
    assert metrics["test/full/mrr@5"] == (dataset.test_U == held).sum()


# ---- idempotency and resume --------------------------------------------------------------
def test_a_message_sent_twice_is_answered_from_the_store(cfg: Config) -> None:
    grid, shared = LocalGrid(1), tiny_run.shared(cfg)
    request = tiny_run.downlink(tiny_run.header(cfg), shared, [1, 2])
    first, second = (content(tiny_run.train(grid, request)) for _ in range(2))
    assert to_bytes(first) == to_bytes(second)  # also its wall time, so it was not trained again
    reordered = replace(request, users=np.array([2, 1]))
    assert to_bytes(content(tiny_run.train(grid, reordered))) == to_bytes(first)


def test_a_round_is_not_trained_twice_for_different_requests(cfg: Config) -> None:
    grid, shared = LocalGrid(1), tiny_run.shared(cfg)
    request = tiny_run.downlink(tiny_run.header(cfg), shared, [1, 2])
    content(tiny_run.train(grid, request))
    other = {n: t + 1 for n, t in shared.items()}
    for changed in (replace(request, users=np.array([1, 3])), replace(request, shared=other)):
        reason = refused(tiny_run.train(grid, changed))
        assert reason.startswith("StaleRequestError: ")
        assert "not trained twice" in reason


def test_a_resumed_server_gets_what_an_uninterrupted_one_gets(tmp_path: Path) -> None:
    """Rounds 1 to 4, resumed at 2 with another cohort in 3: as if it had always been that."""
    cohorts = {1: [1, 2, 5], 2: [2, 7], 3: [2, 5], 4: [1, 7]}
    replies: dict[str, list[Uplink]] = {}
    for label in ("straight", "resumed"):
        cfg = tiny_run.config(tmp_path, *SMALL, f"output={tmp_path / label}")
        grid, shared = LocalGrid(1), tiny_run.shared(cfg)
        head = tiny_run.header(cfg)
        requests = [
            tiny_run.downlink(head, shared, cohorts[r], r, keep_rounds=(0,)) for r in (1, 2)
        ]
        if label == "resumed":
            requests += [tiny_run.downlink(head, shared, [1, 2, 7], r) for r in (3, 4)]
            head = replace(head, incarnation=1)
        requests += [
            tiny_run.downlink(head, shared, cohorts[r], r, keep_rounds=(2,)) for r in (3, 4)
        ]
        replies[label] = [uplink(tiny_run.train(grid, r), shared) for r in requests][-2:]
    for straight, resumed in zip(*replies.values(), strict=True):
        for name, tensor in straight.update.tensors.items():
            assert torch.equal(tensor, resumed.update.tensors[name]), name


def test_hello_of_a_resumed_server_drops_abandoned_rounds(cfg: Config) -> None:
    """Trained up to round 3, resumed from 1: evaluating round 3 must not see the old round 3."""
    grid, shared, head = LocalGrid(1), tiny_run.shared(cfg), tiny_run.header(cfg)
    for round_ in (1, 2, 3):
        content(tiny_run.train(grid, tiny_run.downlink(head, shared, [5], round_)))
    state = tiny_run.node(cfg).state
    kept, abandoned = (state.rows(np.array([5]), round_) for round_ in (1, 3))
    again = HelloRequest(replace(head, incarnation=1), may_start=False, resume_round=1)
    content(tiny_run.ask(grid, HELLO, wire.encode_hello_request(again)))
    after = state.rows(np.array([5]), 3)
    np.testing.assert_array_equal(after, kept)
    assert (after != abandoned).any()


def test_a_node_left_out_by_a_resumed_server_does_not_train_from_abandoned_state(
    tmp_path: Path,
) -> None:
    """Resumed at 2, and round 3 goes without this node: round 4 as if 3 had never been here."""
    replies: dict[str, Uplink] = {}
    for label, rounds in (("straight", (1, 2)), ("resumed", (1, 2, 3))):
        cfg = tiny_run.config(tmp_path, *SMALL, f"output={tmp_path / label}")
        grid, shared, head = LocalGrid(1), tiny_run.shared(cfg), tiny_run.header(cfg)
        for round_ in rounds:
            content(tiny_run.train(grid, tiny_run.downlink(head, shared, [1, 2], round_)))
        head = replace(head, incarnation=1)
        request = tiny_run.downlink(head, shared, [1, 2], 4, keep_rounds=(2,))
        replies[label] = uplink(tiny_run.train(grid, request), shared)
    for name, tensor in replies["straight"].update.tensors.items():
        assert torch.equal(tensor, replies["resumed"].update.tensors[name]), name


def test_a_removed_store_is_made_anew(cfg: Config) -> None:
    first = tiny_run.node(cfg).state.store
    for path in first.path.parent.iterdir():
        path.unlink()
    assert not tiny_run.node(cfg).state.store.read("run", np.arange(20), 1)[0].any()


# ---- privacy: see also test_privacy.py ----------------------------------------------------
def test_replies_hold_only_the_documented_records(cfg: Config) -> None:
    grid, shared, head = LocalGrid(1), tiny_run.shared(cfg), tiny_run.header(cfg)
    reply = content(tiny_run.train(grid, tiny_run.downlink(head, shared, [1, 2])))
    assert set(reply) == {wire.ARRAYS, wire.CONFIG, wire.METRICS}
    names = {name.split("#")[0] for name in reply.array_records[wire.ARRAYS]}
    assert names == set(shared)
    assert set(reply.config_records[wire.CONFIG]) == {"shard-key", "round"}
    ranking = wire.encode_evaluate(tiny_run.evaluation(head, shared))
    reply = content(tiny_run.ask(grid, "evaluate", ranking))
    assert set(reply) == {wire.METRICS, wire.CONFIG, wire.EXPOSURE}


# ---- a stock Flower strategy -------------------------------------------------------------
@pytest.mark.parametrize("weighting", ["samples", "users"])
def test_stock_fedavg_drives_the_nodes(tmp_path: Path, weighting: str) -> None:
    """FedAvg of flwr over two nodes averages as our own server half does with SGD and rate 1.

    Each node's mean, weighted by the node's weight, is the mean over all users; float32 sums
    in another order agree to about 1e-6 of a tensor's norm.
    """
    overrides = (*SMALL, "strategy=fedavg", f"strategy.weighting={weighting}")
    cfg = tiny_run.config(
        tmp_path, *overrides, "strategy.server_optimiser=sgd", "strategy.server_lr=1.0"
    )
    grid, shared = LocalGrid(2), tiny_run.shared(cfg)
    config = ConfigRecord(dict(wire.encode_header(tiny_run.header(cfg, "stock"))))
    result = FedAvg().start(grid, to_arrays(shared), 1, train_config=config, evaluate_config=config)
    ours = tiny_run.node(cfg).strategy
    ours.set_shared(shared)
    head = tiny_run.header(cfg, "ours")
    parts = (list(range(10)), list(range(10, 20)))
    requests = [tiny_run.downlink(head, shared, part) for part in parts]
    ours.apply(uplink(tiny_run.train(grid, r, i), shared) for i, r in enumerate(requests))
    for name, tensor in from_arrays(result.arrays).items():
        moved = (ours.shared[name] - shared[name]).norm()
        assert moved > 0
        assert (tensor - ours.shared[name]).norm() <= 1e-5 * ours.shared[name].norm(), name
    assert result.train_metrics_clientapp[1]["loss"] > 0
    assert 0 < result.evaluate_metrics_clientapp[1]["test/sampled/hr@10"] <= 1


def test_stock_strategies_need_weights_not_gradients(cfg: Config) -> None:
    request = tiny_run.downlink(tiny_run.header(cfg), tiny_run.shared(cfg), None)
    reason = refused(tiny_run.train(LocalGrid(1), replace(request, reply_weights=True)))
    assert "strategy=fedrecgel does not average weights" in reason
    assert "strategy=fedavg" in reason


# ---- refusals ----------------------------------------------------------------------------
def test_users_of_another_node(cfg: Config) -> None:
    request = tiny_run.downlink(tiny_run.header(cfg), tiny_run.shared(cfg), [3, 12])
    reason = refused(tiny_run.train(LocalGrid(2), request))
    assert "shard 000000-of-000002 hosts 10 users from 0 to 9, not user 12" in reason
    assert "client_app/training.py:" in reason


@pytest.mark.parametrize("users", [[], [3, 3]])
def test_users_that_are_no_set(cfg: Config, users: list[int]) -> None:
    request = tiny_run.downlink(tiny_run.header(cfg), tiny_run.shared(cfg), users)
    assert "distinct and at least one" in refused(tiny_run.train(LocalGrid(1), request))


def test_other_code_is_refused_with_both_hashes(cfg: Config) -> None:
    head = replace(tiny_run.header(cfg), code="f00d" * 16)
    for kind in (HELLO, ITEM_COUNTS):
        request = wire.encode_hello_request(HelloRequest(head))
        reason = refused(tiny_run.ask(LocalGrid(1), kind, request))
        assert "f00df00df00df00d at the server" in reason
        assert tiny_run.header(cfg).code[:16] in reason
        assert "fedrecgel stop" in reason
    request = tiny_run.downlink(head, tiny_run.shared(cfg), [1])
    assert "other code" in refused(tiny_run.train(LocalGrid(1), request))


@pytest.mark.parametrize(
    "node_config",
    [
        {},
        {"partition-id": 0},
        {"partition-id": 2, "num-partitions": 2},
        {"partition-id": -1, "num-partitions": 2},
        {"partition-id": "0", "num-partitions": 2},
        {"partition-id": True, "num-partitions": 2},
    ],
)
def test_a_node_without_its_place(cfg: Config, node_config: dict[str, object]) -> None:
    with pytest.raises(runtime.NodeError, match=r"--node-config 'partition-id=0"):
        runtime.open_node(node_config, tiny_run.header(cfg))


def test_store_path_of_the_node(cfg: Config, tmp_path: Path) -> None:
    place = {"partition-id": 0, "num-partitions": 2}

    def path(**extra: str) -> Path:
        config = place | {k.replace("_", "-"): v for k, v in extra.items()}
        return runtime.open_node(config, tiny_run.header(cfg)).state.store.path

    assert path() == tmp_path / "runs" / "tiny" / "nodes" / "000000-of-000002.sqlite"
    assert path(store_path=str(tmp_path / "x" / "mine.db")) == tmp_path / "x" / "mine.db"
    assert path(store_path=str(tmp_path / "x")) == tmp_path / "x" / "000000-of-000002.sqlite"
    unnamed = replace(cfg, name=None)
    with pytest.raises(runtime.NodeError, match="store-path="):
        runtime.open_node(place, replace(tiny_run.header(cfg), config_json=to_json(unnamed)))


def test_a_nodes_own_data_path(cfg: Config, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.csv"
    elsewhere.write_bytes((tmp_path / "ratings.csv").read_bytes())
    wrong = replace(cfg, dataset=replace(cfg.dataset, path="/no/such/file.csv"))
    head = replace(tiny_run.header(cfg), config_json=to_json(wrong))
    place = {"partition-id": 0, "num-partitions": 1, "data-path": str(elsewhere)}
    assert runtime.open_node(place, head).dataset.num_users == 20


def test_more_nodes_than_users(cfg: Config) -> None:
    place = {"partition-id": 0, "num-partitions": 100}
    with pytest.raises(runtime.NodeError, match=r"^100 nodes are too many .*num_nodes=20 or low"):
        runtime.open_node(place, tiny_run.header(cfg))
    request = tiny_run.downlink(tiny_run.header(cfg), tiny_run.shared(cfg), None)
    assert "100 nodes are too many" in refused(tiny_run.train(LocalGrid(100), request))


def test_malformed_requests_name_the_field_and_place(cfg: Config) -> None:
    grid = LocalGrid(1)
    reason = refused(tiny_run.ask(grid, HELLO, RecordDict({"metrics": MetricRecord()})))
    assert reason.startswith("WireError: record 'config' is missing at client_app/app.py:")
    assert re.search(r" > strategies/fields\.py:\d+ section$", reason)
    bad = wire.encode_hello_request(HelloRequest(replace(tiny_run.header(cfg), config_json="{")))
    assert "ConfigError: the configuration is not valid JSON" in refused(
        tiny_run.ask(grid, HELLO, bad)
    )
    request = tiny_run.evaluation(tiny_run.header(cfg), tiny_run.shared(cfg), scorer="oracle")
    reason = refused(tiny_run.ask(grid, "evaluate", wire.encode_evaluate(request)))
    assert "unknown scorer 'oracle': choose one of ['model', 'popularity']" in reason


def test_shared_parameters_are_decoded_once(cfg: Config) -> None:
    record = to_arrays(tiny_run.shared(cfg))
    again = to_arrays(tiny_run.shared(cfg))
    other = to_arrays({n: t + 1 for n, t in tiny_run.shared(cfg).items()})
    first, digest = runtime.decode_shared(record)
    second, same = runtime.decode_shared(again)
    assert first is second
    assert digest == same != runtime.decode_shared(other)[1]


def test_stores_are_closed_when_many_are_open() -> None:
    recent: runtime.Recent[int, str] = runtime.Recent(2)
    assert recent.keep(1, "a") == []
    assert recent.keep(2, "b") == []
    assert recent.fetch(1) == "a"
    assert recent.keep(3, "c") == ["b"]
    assert recent.fetch(2) is None


# ---- recommendation ----------------------------------------------------------------------
def test_recommend_leaves_known_items_out(cfg: Config) -> None:
    grid, shared, user = LocalGrid(1), tiny_run.shared(cfg), 7
    content(tiny_run.train(grid, tiny_run.downlink(tiny_run.header(cfg), shared, [user])))
    node = tiny_run.node(cfg)
    dataset, store = node.dataset, node.state.store
    known = known_items(dataset, user)
    assert dataset.validation_U[user] in known
    assert dataset.test_U[user] not in known

    def best(round_: int, k: int) -> list[tuple[int, float]]:
        return recommend(node.strategy, shared, dataset, store, "run", user, round_, k, seed=0)

    everything = best(1, 99)
    assert sorted(i for i, _ in everything) == sorted(set(range(40)) - set(known.tolist()))
    scores = [score for _, score in everything]
    assert scores == sorted(scores, reverse=True)
    assert best(1, 10) == everything[:10]
    assert [i for i, _ in best(0, 99)] != [i for i, _ in everything]
    private = node.strategy.private_parameters(node.state.block(np.array([user]), 1))
    expected = node.strategy.model.scores_all(shared, private)[0]
    assert everything[0] == (int(everything[0][0]), float(expected[everything[0][0]]))


def test_recommend_refuses_what_is_out_of_range(cfg: Config) -> None:
    node, shared = tiny_run.node(cfg), tiny_run.shared(cfg)
    for user, k, message in (
        (20, 5, "not in 0..19"),
        (-1, 5, "not in 0..19"),
        (3, 0, "at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            recommend(
                node.strategy, shared, node.dataset, node.state.store, "run", user, 0, k, seed=0
            )


def test_recommend_does_not_make_up_a_state(cfg: Config) -> None:
    """A store that has never seen the run is an error, not a list from initial values."""
    node, shared = tiny_run.node(cfg), tiny_run.shared(cfg)
    store = node.state.store
    with pytest.raises(StoreError, match="has no run other"):
        recommend(node.strategy, shared, node.dataset, store, "other", 3, 0, 5, seed=0)


def test_arrays_that_came_as_one_go_back_as_one(cfg: Config) -> None:
    """As over a deployment's grid; the reply is the same to the byte."""
    request = tiny_run.downlink(tiny_run.header(cfg), tiny_run.shared(cfg), [3, 5])
    plain = wire.encode_downlink(request)
    reply = tiny_run.train(LocalGrid(1), request)
    again = tiny_run.ask(LocalGrid(1), "train", bundled(plain))
    assert is_bundled(again.content) and not is_bundled(reply.content)
    assert unbundled(again.content).array_records == reply.content.array_records
