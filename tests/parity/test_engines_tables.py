"""Strategies with tables of single users: runs of both engines, in blocks of any size and on nodes
in any number, have the same bytes; what the server makes for users included."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_run
import torch

from models.types import Tensors
from server_app.checkpoint import load_checkpoint
from server_app.grid import LocalGrid
from server_app.results import RunResult
from server_app.run import run_server

ENGINES = {
    "loop": ("engine=loop",),
    "cohort": ("engine.block_users=6",),
    "cohort-of-all": ("engine.block_users=20",),
}


def run(folder: Path, strategy: str, engine: str, nodes: int = 1) -> tuple[RunResult, Tensors]:
    """Three rounds of half of the users, so that most are trained twice."""
    settings = (f"strategy={strategy}", "federation.rounds=3", "federation.fraction=0.5")
    overrides = ("evaluation.every=1", f"federation.num_nodes={nodes}", f"name={engine}-{nodes}")
    cfg = tiny_run.config(folder, *settings, *overrides, *ENGINES[engine])
    result = run_server(LocalGrid(nodes), cfg)
    checkpoint = load_checkpoint(result.folder)
    return result, checkpoint.shared | checkpoint.server_state


@pytest.mark.parametrize("strategy", ["gpfedrec", "cofedrec", "fedca", "fedem"])
@pytest.mark.parametrize(("engine", "nodes"), [("cohort", 1), ("cohort-of-all", 1), ("cohort", 3)])
def test_engines_and_nodes_agree_to_the_bit(
    tmp_path: Path, strategy: str, engine: str, nodes: int
) -> None:
    """A user is trained by the same operations either way, and uploads go by user."""
    loop, expected = run(tmp_path, strategy, "loop")
    cohort, got = run(tmp_path, strategy, engine, nodes)
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[tensor], expected[tensor]) for tensor in expected)
    if nodes == 1:
        assert cohort.metrics == loop.metrics
    else:
        # A mean over 20 users, added up node by node, rounds at 20 · 1e-16.
        assert cohort.metrics == pytest.approx(loop.metrics, rel=1e-14)
