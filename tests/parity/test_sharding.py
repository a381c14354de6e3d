"""One user a node = a few nodes = all users in one node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_run
import torch

from conf.compose import compose
from conf.tree import Config
from models.types import SumOfUpdates, Tensors, Update
from server_app.grid import LocalGrid
from server_app.run import run_server
from strategies import wire

SHARDINGS = (1, 3, 20)
ROUNDS = 3


def run(cfg: Config, num_nodes: int) -> tuple[list[Update], np.ndarray, Tensors]:
    """Summed updates of each round, all users' private rows after it, and the last parameters."""
    grid, head = LocalGrid(num_nodes), tiny_run.header(cfg)
    nodes = [tiny_run.node(cfg, i, num_nodes) for i in range(num_nodes)]
    strategy, sums = nodes[0].strategy, []
    strategy.set_shared(tiny_run.shared(cfg))
    for round_ in range(1, ROUNDS + 1):
        total = SumOfUpdates(strategy.shared)
        uplinks = []
        for index, node in enumerate(nodes):
            # Every third user sits a round out, another third each round.
            users = [int(u) for u in node.users if u % 3 != round_ % 3]
            if not users:
                continue
            request = tiny_run.downlink(head, strategy.shared, users, round_)
            reply = tiny_run.train(grid, request, index)
            assert not reply.has_error(), reply.error.reason
            uplinks.append(wire.decode_uplink(reply.content, strategy.shared))
            total.add(uplinks[-1].update)
        sums.append(total.result())
        strategy.apply(uplinks)
    rows = np.concatenate([node.state.rows(node.users, ROUNDS) for node in nodes])
    return sums, rows, strategy.shared


@pytest.mark.parametrize("strategy", ["fedrecgel", "fedavg", "fedmf"])
def test_sharding_does_not_matter(tmp_path: Path, strategy: str) -> None:
    """After the first round the sums differ by the order of float32 additions alone.

    Twenty terms of relative error 6e-8 each stay far below the 1e-5 of a tensor's norm that is
    promised. A user's own row of the first round does not even meet another user's numbers
    except within a block of the engine. Later rounds start from parameters that differ in the
    last bits, so only the order of magnitude is asked of them: 1e-3.
    """
    results = {}
    for num_nodes in SHARDINGS:
        output = tmp_path / f"nodes-{num_nodes}"
        cfg = tiny_run.config(
            tmp_path, f"strategy={strategy}", "model.factors=4", f"output={output}"
        )
        results[num_nodes] = run(cfg, num_nodes)
    (first, *_), rows, shared = results[1]
    for num_nodes in SHARDINGS[1:]:
        (other, *_), other_rows, other_shared = results[num_nodes]
        assert other.weight == pytest.approx(first.weight, rel=1e-12)
        for name, tensor in first.tensors.items():
            assert tensor.norm() > 0, name
            assert (tensor - other.tensors[name]).norm() <= 1e-5 * tensor.norm(), name
        for name, weights in (first.row_weights or {}).items():
            assert other.row_weights is not None
            assert torch.equal(weights, other.row_weights[name])
        assert np.linalg.norm(rows - other_rows) <= 1e-3 * np.linalg.norm(rows)
        for name, tensor in shared.items():
            assert (tensor - other_shared[name]).norm() <= 1e-3 * tensor.norm(), name


def test_private_rows_are_equal_after_one_round(tmp_path: Path) -> None:
    """With one user a block each row is computed by the very same operations: equal bits."""
    rows = []
    for num_nodes in (1, 20):
        overrides = (
            "model.factors=4",
            "engine.block_users=1",
            f"output={tmp_path / str(num_nodes)}",
        )
        cfg = tiny_run.config(tmp_path, *overrides)
        grid, shared = LocalGrid(num_nodes), tiny_run.shared(cfg)
        nodes = [tiny_run.node(cfg, i, num_nodes) for i in range(num_nodes)]
        for index in range(num_nodes):
            request = tiny_run.downlink(tiny_run.header(cfg), shared, None)
            assert not tiny_run.train(grid, request, index).has_error()
        rows.append(np.concatenate([node.state.rows(node.users, 1) for node in nodes]))
    np.testing.assert_array_equal(*rows)
    initial = tiny_run.node(cfg, 0, 20).state.rows(np.arange(1), 0)
    assert (rows[0][0] != initial[0]).any()


def test_metrics_after_ten_rounds_on_movielens(shared_data: Path, tmp_path: Path) -> None:
    """One node and seven: every hit rate differs by two users at most, as promised."""
    source, metrics = shared_data / "ml_100k" / "ml-100k.inter", []
    for num_nodes in (1, 7):
        cfg = compose(
            [
                f"dataset.path={source}",
                f"cache={tmp_path / 'cache'}",
                f"output={tmp_path}",
                f"name=nodes-{num_nodes}",
                f"federation.num_nodes={num_nodes}",
                "federation.rounds=10",
                "strategy=fedmf",
                "evaluation.every=10",
            ]
        )
        metrics.append(run_server(LocalGrid(num_nodes), cfg).metrics)
    hit_rates = [name for name in metrics[0] if "/hr@" in name]
    assert len(hit_rates) == 16  # test and validation, sampled and full, four cut-offs
    for name in hit_rates:
        assert abs(metrics[0][name] - metrics[1][name]) <= 2 / 943 + 1e-9, name


def test_same_sharding_gives_the_same_bytes(tmp_path: Path) -> None:
    results = []
    for label in ("a", "b"):
        cfg = tiny_run.config(tmp_path, "model.factors=4", f"output={tmp_path / label}")
        results.append(run(cfg, 3))
    (_, rows_a, shared_a), (_, rows_b, shared_b) = results
    np.testing.assert_array_equal(rows_a, rows_b)
    assert all(torch.equal(tensor, shared_b[name]) for name, tensor in shared_a.items())
