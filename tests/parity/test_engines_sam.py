"""Sharpness-aware gradients: a block equals the loop over users, adaptive and not, any model."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from ranking_bias import comparable

from models.base import ScoringModel
from models.linear import LinearScoring
from models.losses import Loss, LossName
from models.mf import MatrixFactorisation
from models.neumf import NeuMF
from models.sam import Radii, loop_gradients
from models.types import Samples, SumOfUpdates, Tensors
from strategies.base import RecStrategy
from strategies.fedrecgel import FedRecGEL, FedRecGELConfig
from strategies.sam_config import SAMConfig

MODELS: dict[str, ScoringModel] = {
    "mf": MatrixFactorisation(factors=4, init_std=0.5),
    "linear": LinearScoring(factors=4),
    "neumf": NeuMF(factors=4),
}
RADII = [Radii(0.3, 0.2), Radii(shared=0.3), Radii(private=0.2)]
# The contract between engines, of each tensor's norm; rounding alone stays 20 times below.
PRECISIONS = [(torch.float32, 1e-5), (torch.float64, 1e-10)]
POSITIVES = (3, 1, 30, 12)


def problem(
    model: ScoringModel, num_items: int, dtype: torch.dtype
) -> tuple[Tensors, Tensors, list[Samples]]:
    """Parameters off their initial draw, so that every layer matters, and samples that repeat."""
    rng = np.random.default_rng(0)
    shared = model.init_shared(num_items, rng)
    rows = [model.init_private(num_items, rng) for _ in POSITIVES]
    block = {n: torch.stack([row[n] for row in rows]) for n in rows[0]}
    shared, block = (
        {n: (t + torch.from_numpy(rng.normal(0, 0.3, t.shape))).to(dtype) for n, t in part.items()}
        for part in (shared, block)
    )
    labels = [np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), n) for n in POSITIVES]
    return shared, block, [Samples(rng.integers(0, num_items, len(own)), own) for own in labels]


def close(got: Tensors, expected: Tensors, tolerance: float) -> None:
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        off = float((got[name].to_dense() - tensor.to_dense()).norm())
        assert off <= tolerance * float(tensor.to_dense().norm()), name


@pytest.mark.parametrize("num_items", [23, 3000], ids=["dense", "sparse"])
@pytest.mark.parametrize("radii", RADII, ids=str)
@pytest.mark.parametrize("adaptive", [False, True], ids=["plain", "adaptive"])
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS, ids=["float32", "float64"])
@pytest.mark.parametrize("loss_name", get_args(LossName))
@pytest.mark.parametrize("name", MODELS)
def test_block_gradients_equal_the_loop(
    name: str,
    loss_name: LossName,
    dtype: torch.dtype,
    tolerance: float,
    adaptive: bool,
    radii: Radii,
    num_items: int,
) -> None:
    model, radii, loss = MODELS[name], replace(radii, adaptive=adaptive), Loss(16, loss_name)
    shared, block, samples = problem(model, num_items, dtype)
    got = model.block_gradients(shared, block, samples, loss, radii)
    expected = loop_gradients(model, shared, block, samples, loss, radii)
    ours, theirs = (comparable(out.shared, loss, samples, tolerance) for out in (got, expected))
    close(ours, theirs, tolerance)
    close(got.private, expected.private, tolerance)
    torch.testing.assert_close(
        got.losses, expected.losses, rtol=tolerance, atol=tolerance, equal_nan=True
    )


@pytest.mark.parametrize("name", MODELS)
def test_adaptation_changes_every_gradient(name: str) -> None:
    model = MODELS[name]
    shared, block, samples = problem(model, 23, torch.float64)
    plain, adaptive = (
        model.block_gradients(shared, block, samples, Loss(16), Radii(0.3, 0.2, on))
        for on in (False, True)
    )
    for got, other in ((plain.shared, adaptive.shared), (plain.private, adaptive.private)):
        for tensor in got:
            off = float((got[tensor].to_dense() - other[tensor].to_dense()).norm())
            assert off > 1e-3 * float(got[tensor].to_dense().norm()), tensor


@pytest.mark.parametrize("local_epochs", [1, 2])
@pytest.mark.parametrize("adaptive", [False, True], ids=["plain", "adaptive"])
@pytest.mark.parametrize("loss_name", get_args(LossName))
@pytest.mark.parametrize("name", MODELS)
def test_cohort_update_is_the_sum_of_client_updates(
    name: str, loss_name: LossName, adaptive: bool, local_epochs: int
) -> None:
    sam = SAMConfig(0.3, 0.2, adaptive)
    config = FedRecGELConfig(sam=sam, loss=loss_name, loss_slice=16, local_epochs=local_epochs)
    strategy: RecStrategy = FedRecGEL(config, MODELS[name])
    shared, block, samples = problem(MODELS[name], 23, torch.float64)
    rngs = [np.random.default_rng(u) for u in range(len(samples))]
    drawn = [strategy.init_private(23, rng) for rng in rngs]
    block = {n: torch.stack([row[n] for row in drawn]).double() for n in drawn[0]} | block
    epochs_U = [[own] * local_epochs for own in samples]
    cohort = strategy.cohort_update(shared, block, epochs_U, rngs)
    total, private = SumOfUpdates(shared), list[Tensors]()
    for u, epochs in enumerate(epochs_U):
        row = {n: t[u] for n, t in block.items()}
        result = strategy.client_update(shared, row, epochs, rngs[u])
        total.add(result.update)
        private.append(dict(result.private))
    ours, theirs = (
        comparable(update.tensors, Loss(16, loss_name), samples, 1e-10)
        for update in (cohort.update, total.result())
    )
    close(ours, theirs, 1e-10)
    close(cohort.private, {n: torch.stack([row[n] for row in private]) for n in block}, 1e-10)
