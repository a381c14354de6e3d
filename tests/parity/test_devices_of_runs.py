"""Runs on the devices' clock: the same on any number of nodes, after a break, and as by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_run
import torch
from made_up import NUM_USERS, final_tensors, small_config
from test_resume import StopAfter

from client_app.engine import train_users
from client_app.node_config import NodeError
from client_app.versions import train_versions
from server_app.callbacks import read_metrics
from server_app.checkpoint import load_checkpoint
from server_app.grid import LocalGrid
from server_app.results import RunResult
from server_app.run import run_server
from strategies.messages import Older

PHONES = ("devices=phones", "devices.slot_s=2", "federation.fraction=0.25")
ASYNC = (*PHONES, "strategy.async.buffer=4")
ALIKE = (
    "devices=phones", "devices.availability=1", "devices.availability_exponent=0",
    "devices.spread=0", "devices.drop_out=0", "devices.samples_per_s=1e+300",
)  # fmt: skip
"""Everybody is there and as fast as everybody else: what work takes is lost in rounding."""


SUMS = 1e-3
"""Of a norm: rounding of sums in another order grows over rounds (test_sharding.py)."""


def run(folder: Path, *overrides: str, nodes: int = 2, stop: int | None = None) -> RunResult:
    folder.mkdir(exist_ok=True)
    cfg = small_config(folder, "name=run", f"federation.num_nodes={nodes}", *overrides)
    return run_server(LocalGrid(nodes), cfg, [] if stop is None else [StopAfter(stop)])


def tallies(result: RunResult) -> list[object]:
    return [record["devices"] for record in read_metrics(result.folder)]


@pytest.mark.parametrize("settings", [PHONES, ASYNC], ids=["synchronous", "asynchronous"])
def test_one_node_trains_as_many(tmp_path: Path, settings: tuple[str, ...]) -> None:
    """Who takes part is the same to the last digit; sums of float32 differ in their order."""
    alone, spread = (run(tmp_path / str(n), *settings, nodes=n) for n in (1, 5))
    assert tallies(alone) == tallies(spread)
    ours, theirs = load_checkpoint(alone.folder).shared, load_checkpoint(spread.folder).shared
    for name, tensor in ours.items():
        apart = torch.linalg.vector_norm(tensor - theirs[name])
        assert apart <= SUMS * torch.linalg.vector_norm(tensor), name


@pytest.mark.parametrize("settings", [PHONES, ASYNC], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_resumed_run_ends_with_the_same_bytes_and_clock(
    tmp_path: Path, stop: int, settings: tuple[str, ...]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", *settings, stop=stop)
    resumed = run(tmp_path / "broken", *settings, "resume=true")
    whole = run(tmp_path / "whole", *settings)
    assert tallies(resumed) == tallies(whole)
    assert resumed.totals["devices_seconds"] == whole.totals["devices_seconds"] > 0
    assert final_tensors(resumed.folder) == final_tensors(whole.folder)
    assert resumed.metrics == whole.metrics


def test_a_checkpoint_has_the_parameters_that_are_in_use(tmp_path: Path) -> None:
    result = run(tmp_path, *ASYNC)
    staleness = [record["devices"]["staleness_max"] for record in read_metrics(result.folder)]  # type: ignore[index]
    kept = load_checkpoint(result.folder)
    assert max(staleness) > 0
    assert set(kept.versions) <= set(range(result.rounds))
    assert all(v.keys() == kept.shared.keys() for v in kept.versions.values())
    state = json.loads((sorted(result.folder.glob("checkpoint/*"))[-1] / "state.json").read_text())
    assert ("versions.safetensors" in state["sha256"]) == bool(kept.versions)


def test_alike_devices_and_a_buffer_of_the_cohort_train_as_without(tmp_path: Path) -> None:
    """Twelve of 24 users at once: rounds without devices, with them, and buffered are one run."""
    assert NUM_USERS == 24
    plain = run(tmp_path / "plain")
    together = run(tmp_path / "together", *ALIKE)
    buffered = run(tmp_path / "buffered", *ALIKE, "strategy.async.buffer=12", "devices.latency_s=9")
    for found in (together, buffered):
        assert final_tensors(found.folder) == final_tensors(plain.folder)
        assert found.metrics == plain.metrics
    assert [r["devices"] for r in read_metrics(plain.folder)] == [None] * plain.rounds


def test_versions_are_trained_apart_and_weighted(tmp_path: Path) -> None:
    """Four users, one from older parameters with weight a half, in one sum."""
    cfg = tiny_run.config(tmp_path, "model=mf", "model.factors=4")
    node, new = tiny_run.node(cfg), tiny_run.shared(cfg)
    old = {name: tensor + 0.1 for name, tensor in new.items()}
    request = tiny_run.downlink(tiny_run.header(cfg), new, [0, 1, 2, 3])
    request = replace(request, older=(Older(0, np.array([2]), 0.5, old),))

    def alone(shared: dict[str, torch.Tensor], users: list[int]) -> dict[str, torch.Tensor]:
        trained = train_users(
            node.strategy, shared, np.array(users), round_=1, base_round=0,
            dataset=node.dataset, state=node.state, cfg=cfg,
        )  # fmt: skip
        return {name: tensor.to_dense() for name, tensor in trained.update.tensors.items()}

    found = train_versions(node, request, np.arange(4))
    fresh, stale = alone(new, [0, 1, 3]), alone(old, [2])
    assert found.update.weight == 4
    assert sorted(found.users.tolist()) == [0, 1, 2, 3]
    for name, tensor in found.update.tensors.items():
        assert torch.allclose(tensor.to_dense(), fresh[name] + 0.5 * stale[name], rtol=1e-6)
        assert not torch.equal(stale[name], alone(new, [2])[name])


@pytest.mark.parametrize(
    ("users", "says"),
    [([[2], [2]], "from two versions"), ([[9]], "not asked for")],
)
def test_a_request_that_contradicts_itself(
    tmp_path: Path, users: list[list[int]], says: str
) -> None:
    cfg = tiny_run.config(tmp_path, "model=mf")
    shared = tiny_run.shared(cfg)
    older = tuple(Older(v, np.array(u), 1.0, shared) for v, u in enumerate(users))
    request = replace(tiny_run.downlink(tiny_run.header(cfg), shared, [1, 2]), older=older)
    with pytest.raises(NodeError, match=says):
        train_versions(tiny_run.node(cfg), request, np.array([1, 2]))
