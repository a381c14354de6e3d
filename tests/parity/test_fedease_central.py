"""FedEASE with everybody counted has the weights of the central EASE^R, and keeps them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_run
import torch

from client_app.data import load_dataset
from conf.tree import Config
from models.count_sketch import CountSketch
from models.ease import WEIGHTS
from server_app.checkpoint import load_checkpoint
from server_app.cli_reference_rows import training_matrix
from server_app.grid import LocalGrid
from server_app.references.base import LabelledPairs, binary
from server_app.references.ease import EASE, EASEConfig
from server_app.run import run_server

L2 = 20.0
EVERYBODY = ("federation.fraction=1.0", "federation.rounds=3")
PART = ("federation.fraction=0.4", "federation.rounds=14", "seed=1")
"""Eight of twenty users a round: all but 0.6¹⁴ = 0.0008 of them are seen, here all."""


def _none(seed: int, epoch: int, negatives: int) -> LabelledPairs:
    raise AssertionError("EASE draws no negatives")


def central(cfg: Config) -> tuple[torch.Tensor, float]:
    """The reference's weights, and the condition number of the system."""
    pytest.importorskip("scipy")
    once_UI = binary(training_matrix(load_dataset(cfg)))
    weights_II = EASE(EASEConfig(L2), _none).weights(once_UI)
    dense_UI = once_UI.toarray()
    system_II = dense_UI.T @ dense_UI + L2 * np.eye(dense_UI.shape[1])
    return torch.from_numpy(np.ascontiguousarray(weights_II)), float(np.linalg.cond(system_II))


@pytest.mark.parametrize("how", [EVERYBODY, PART], ids=["everybody", "part"])
@pytest.mark.parametrize("num_nodes", [1, 3])
def test_weights_are_the_central_ones(tmp_path: Path, how: tuple[str, ...], num_nodes: int) -> None:
    """The counts are the same whole numbers, so two solvers of one system differ.

    Each inverse has a relative error of some n ε κ (n = 40 unknowns, ε of float64, κ the condition
    number, here a few): 1e-13. Weights are then rounded to float32, which is 6e-8 of each.
    """
    settings = ("strategy=fedease", f"strategy.l2={L2}", f"federation.num_nodes={num_nodes}")
    cfg = tiny_run.config(tmp_path, *settings, *how)
    result = run_server(LocalGrid(num_nodes), cfg)
    got = load_checkpoint(result.folder).shared[WEIGHTS].double()
    expected, condition = central(cfg)
    solvers = 4 * len(expected) * float(np.finfo(np.float64).eps) * condition
    assert solvers < 1e-10
    largest = float(expected.abs().max())
    torch.testing.assert_close(got, expected, rtol=6e-8, atol=solvers * largest)


def test_a_sketch_without_collisions_has_the_central_weights(tmp_path: Path) -> None:
    """All 780 pairs in buckets of their own: an estimate is its count but for rounding.

    What is noise by the sketch is then ε times 780 sums of squares r², and the shrinkage, one
    less noise over spread, 780 ε Σr² / φκcᵢcⱼ: below 1e-11 for counts of 1 to 20. With all pairs
    off by 1e-11 G is by at most 4e-10 in norm, its inverse, of norm 1/λ at most, by 4e-10 / λ², and
    a weight, a quotient by a diagonal entry, at least 1 over the largest eigenvalue, by twice that
    over this entry for weights below 1. Weights are then rounded to float32: 6e-8 of each.
    """
    width = (1 << 20) + 7
    buckets, _ = CountSketch(1, width)._hashed(0, np.arange(780), torch.zeros(1))
    assert len(buckets.unique()) == 780
    settings = ("strategy=fedease", f"strategy.l2={L2}", f"strategy.sketch_width={width}")
    cfg = tiny_run.config(tmp_path, *settings, "strategy.sketch_rows=1", *EVERYBODY)
    result = run_server(LocalGrid(2), cfg)
    got, (expected, condition) = (
        load_checkpoint(result.folder).shared[WEIGHTS].double(),
        central(cfg),
    )
    assert float(expected.abs().max()) < 1
    largest = condition * (L2 + 20)  # at least: the smallest is λ and a little
    torch.testing.assert_close(got, expected, rtol=6e-8, atol=2 * 4e-10 / L2**2 * largest)


def test_truncated_weights_do_not_bound_what_is_uploaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of 320 bytes down, 3,440 of counts and pairs up: no reply is too large for it."""
    monkeypatch.setattr("server_app.run.MAX_REPLY_BYTES", 0)
    cfg = tiny_run.config(tmp_path, "strategy=fedease", "model.top_k=1", *EVERYBODY)
    result = run_server(LocalGrid(2), cfg)
    weights = load_checkpoint(result.folder).shared[WEIGHTS]
    assert weights.shape == (40, 2)
    assert weights[:, 0].all()
