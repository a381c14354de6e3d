"""Recommending under the selected round, for strategies that send users tensors of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_run
import torch

from server_app.checkpoint import load_checkpoint
from server_app.cli import run_command
from server_app.cli_recommendations import recommendations
from server_app.grid import LocalGrid
from server_app.run import run_server

SETTINGS = (
    "federation.num_nodes=1",
    "federation.fraction=0.5",
    "evaluation.every=1",
    "federation.checkpoint_every=1",
)
EARLY = 2


def finished(folder: Path, strategy: str, rounds: int, seed: int) -> int | None:
    """Run; the selected round."""
    what = (f"strategy={strategy}", f"name=r{rounds}-{seed}", f"federation.rounds={rounds}")
    cfg = tiny_run.config(folder, *SETTINGS, *what, f"seed={seed}")
    return run_server(LocalGrid(1), cfg).selected_round


def early_choice(folder: Path, strategy: str) -> tuple[Path, Path]:
    """A run of four rounds that selects its second, and one of two rounds that does as well."""
    for seed in range(20):
        if finished(folder, strategy, 2 * EARLY, seed) == EARLY:
            assert finished(folder, strategy, EARLY, seed) == EARLY
            return folder / "runs" / f"r{2 * EARLY}-{seed}", folder / "runs" / f"r{EARLY}-{seed}"
    raise AssertionError(f"no seed of {strategy} selects round {EARLY}")


@pytest.mark.parametrize("strategy", ["cofedrec", "fedca", "fedem"])
def test_later_tables_are_not_seen(tmp_path: Path, strategy: str) -> None:
    """What users are ranked with after round 2 is the same two rounds later."""
    long, short = early_choice(tmp_path, strategy)
    own, other = load_checkpoint(long), load_checkpoint(short)
    assert all(torch.equal(t, other.best[n]) for n, t in own.best.items())
    assert any(not torch.equal(t, own.best[n]) for n, t in own.shared.items())
    waiting = 0
    for user in map(str, range(tiny_run.NUM_USERS)):
        found, expected = (recommendations(run, user, tiny_run.NUM_ITEMS) for run in (long, short))
        assert found.items == expected.items
        assert found.source == "private embedding"
    for run in (long, short):
        (folder,) = (run / "strategy").iterdir()
        waiting += len(list(folder.iterdir()))
    assert waiting  # and there are tables at all


def test_clusters_that_are_not_kept_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long, short = early_choice(tmp_path, "perfedrec")
    assert recommendations(short, "3", 5).source == "private embedding"
    assert recommendations(long, "3", 5).source == "private embedding alone"
    assert run_command(["recommend", "--run", str(long), "--user", "3"]) == 0
    assert "without the server's part for the user" in capsys.readouterr().out.replace("\n", " ")
