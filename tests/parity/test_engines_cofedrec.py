"""CoFedRec: runs of both engines, in blocks of any size, have the same bytes, labels included."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_run
import torch

from server_app.checkpoint import load_checkpoint
from server_app.grid import LocalGrid
from server_app.results import RunResult
from server_app.run import run_server

ENGINES = {
    "loop": ("engine=loop",),
    "cohort": ("engine.block_users=6",),
    "cohort-of-all": ("engine.block_users=20",),
}


def run(folder: Path, name: str) -> tuple[RunResult, dict[str, torch.Tensor]]:
    """Three rounds of half of the users, so that most are trained twice."""
    settings = (
        "strategy=cofedrec",
        "federation.rounds=3",
        "federation.fraction=0.5",
        "federation.num_nodes=1",
    )
    cfg = tiny_run.config(folder, *settings, "evaluation.every=1", f"name={name}", *ENGINES[name])
    result = run_server(LocalGrid(1), cfg)
    checkpoint = load_checkpoint(result.folder)
    return result, checkpoint.shared | checkpoint.server_state


@pytest.mark.parametrize("name", ["cohort", "cohort-of-all"])
def test_engines_agree_to_the_bit(tmp_path: Path, name: str) -> None:
    """A user is trained by the same operations either way, and uploads go by user."""
    loop, expected = run(tmp_path, "loop")
    cohort, got = run(tmp_path, name)
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[tensor], expected[tensor]) for tensor in expected)
    assert cohort.metrics == loop.metrics
