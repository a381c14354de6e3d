"""NeuMF's block gradients against automatic differentiation user by user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from ranking_bias import comparable

from models import neumf_block
from models.losses import Loss, LossName
from models.neumf import NeuMF
from models.pairs import WeightedPairs, distinct_pairs, groups
from models.sam import BlockGradients, Radii, loop_gradients
from models.types import Samples, Tensors
from strategies.fedrecgel import FedRecGEL, FedRecGELConfig
from strategies.sam_config import SAMConfig

NUM_ITEMS = 50
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
"""The contract between engines: of each tensor's norm. Rounding alone stays 20 times below."""
RADII = [Radii(), Radii(shared=0.3), Radii(private=0.2), Radii(0.3, 0.2)]
LOSSES = get_args(LossName)
POSITIVES = (3, 0, 1, 60, 12, 30)
"""Of each user: one without samples, one with several slices, most with repeated items."""


def _samples(rng: np.random.Generator, positives: int) -> Samples:
    """Items drawn with replacement: repeated, and both positive and negative."""
    labels = np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), positives)
    return Samples(rng.integers(0, NUM_ITEMS, len(labels)), labels)


def _block(
    model: NeuMF, dtype: torch.dtype, positives: Sequence[int] = POSITIVES, seed: int = 0
) -> tuple[Tensors, Tensors, list[Samples]]:
    rng = np.random.default_rng(seed)
    shared = model.init_shared(NUM_ITEMS, rng)
    shared = {n: t + torch.from_numpy(rng.normal(0, 0.2, t.shape)) for n, t in shared.items()}
    private = {
        n: torch.from_numpy(rng.normal(0, 0.5, (len(positives), *t.shape)))
        for n, t in model.init_private(NUM_ITEMS, rng).items()
    }
    shared, private = ({n: t.to(dtype) for n, t in part.items()} for part in (shared, private))
    return shared, private, [_samples(rng, count) for count in positives]


def _difference(actual: Tensors, expected: Tensors) -> float:
    assert set(actual) == set(expected)
    assert all(
        actual[n].dtype == t.dtype and actual[n].shape == t.shape for n, t in expected.items()
    )
    return max(
        float((actual[n] - t).norm() / t.norm()) if t.any() else float(actual[n].abs().max())
        for n, t in expected.items()
    )


def _agree(actual: BlockGradients, expected: BlockGradients, tolerance: float) -> None:
    assert _difference(actual.shared, expected.shared) < tolerance
    assert _difference(actual.private, expected.private) < tolerance
    torch.testing.assert_close(
        actual.losses, expected.losses, rtol=tolerance, atol=tolerance, equal_nan=True
    )


@pytest.mark.parametrize("radii", RADII, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("mlp_layers", [1, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_block_equals_loop(
    name: LossName, mlp_layers: int, dtype: torch.dtype, radii: Radii
) -> None:
    model, loss = NeuMF(8, mlp_layers), Loss(128, name)
    shared, private, samples = _block(model, dtype)
    assert any(len(np.unique(s.items_S)) < len(s) for s in samples)
    loop, block = (
        replace(out, shared=comparable(out.shared, loss, samples, TOLERANCE[dtype]))
        for out in (
            loop_gradients(model, shared, private, samples, loss, radii),
            model.block_gradients(shared, private, samples, loss, radii),
        )
    )
    _agree(block, loop, TOLERANCE[dtype])


@pytest.mark.parametrize("radii", RADII, ids=str)
@pytest.mark.parametrize("max_pairs", [1, 40, 10**6])
@pytest.mark.parametrize("name", LOSSES)
def test_grouping_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, name: LossName, max_pairs: int, radii: Radii
) -> None:
    monkeypatch.setattr(neumf_block, "GROUP_PAIRS", max_pairs)
    model, loss = NeuMF(4), Loss(16, name)
    shared, private, samples = _block(model, torch.float64)
    loop, block = (
        replace(out, shared=comparable(out.shared, loss, samples, 1e-10))
        for out in (
            loop_gradients(model, shared, private, samples, loss, radii),
            model.block_gradients(shared, private, samples, loss, radii),
        )
    )
    _agree(block, loop, 1e-10)


def test_full_width_in_float32() -> None:
    model = NeuMF()
    shared, private, samples = _block(model, torch.float32, positives=(40, 25))
    radii = Radii(0.02, 0.02)
    expected = loop_gradients(model, shared, private, samples, Loss(128), radii)
    _agree(model.block_gradients(shared, private, samples, Loss(128), radii), expected, 1e-5)


@pytest.mark.parametrize("radii", RADII, ids=str)
def test_zero_gradient(radii: Radii) -> None:
    """All parameters zero: dL/ds is −w/2 for the positive, w/2 for the negative; they cancel.

    Every gradient is then zero, and no perturbation may turn it into NaN.
    """
    model = NeuMF(4)
    shared, private, _ = _block(model, torch.float32, positives=(1,))
    shared, private = (
        {n: torch.zeros_like(t) for n, t in part.items()} for part in (shared, private)
    )
    samples = [Samples(np.array([4, 9]), np.array([1, 0], dtype=np.float32))]
    out = model.block_gradients(shared, private, samples, Loss(128), radii)
    assert not any(t.any() for part in (out.shared, out.private) for t in part.values())
    losses = out.losses[0][~out.losses[0].isnan()]
    torch.testing.assert_close(losses, torch.full_like(losses, np.log(2)))


def test_saturated_scores() -> None:
    """Scores of ±60 leave the exact loss where softplus of torch is cut off."""
    model = NeuMF(4)
    shared, private, samples = _block(model, torch.float64, positives=(9,))
    shared["out_b"] += 60
    expected = loop_gradients(model, shared, private, samples, Loss(128), Radii(0.1, 0.1))
    _agree(
        model.block_gradients(shared, private, samples, Loss(128), Radii(0.1, 0.1)), expected, 1e-10
    )


def test_same_bytes_again_and_inputs_untouched() -> None:
    model = NeuMF(8)
    shared, private, samples = _block(model, torch.float32)
    before = {n: t.clone() for n, t in {**shared, **private}.items()}
    first, again = (
        model.block_gradients(shared, private, samples, Loss(128), Radii(0.1, 0.1))
        for _ in range(2)
    )
    assert all(torch.equal(first.shared[n], again.shared[n]) for n in first.shared)
    assert all(torch.equal(first.private[n], again.private[n]) for n in first.private)
    assert all(torch.equal(before[n], t) for n, t in {**shared, **private}.items())


def test_rows_of_other_items_stay_zero() -> None:
    model = NeuMF(4)
    shared, private, samples = _block(model, torch.float32, positives=(2, 1))
    touched = np.unique(np.concatenate([s.items_S for s in samples]))
    out = model.block_gradients(shared, private, samples, Loss(128), Radii(0.1, 0.1))
    assert all(out.shared[n].is_sparse for n in model.item_tables)
    tables = {n: out.shared[n].to_dense() for n in model.item_tables}
    rows = {n: t.any(1).nonzero().flatten().numpy() for n, t in tables.items()}
    assert np.array_equal(rows["item_gmf"], touched)
    assert set(rows["item_mlp"]) <= set(touched)  # fewer: units of the MLP may be off


@pytest.mark.parametrize("radii", RADII, ids=str)
def test_tables_of_a_large_catalogue_are_sparse_and_the_same(radii: Radii) -> None:
    """The users' samples are among the first 50 of 500 items."""
    model = NeuMF(4)
    small, private, samples = _block(model, torch.float64)
    rng = np.random.default_rng(7)
    more = {n: torch.from_numpy(rng.normal(0, 0.2, (450, t.shape[1]))) for n, t in small.items()
            if n in model.item_tables}  # fmt: skip
    shared = {n: torch.cat([t, more[n]]) if n in more else t for n, t in small.items()}
    block = model.block_gradients(shared, private, samples, Loss(16), radii)
    assert all(block.shared[n].is_sparse for n in model.item_tables)
    dense = {n: t.to_dense() for n, t in block.shared.items()}
    expected = loop_gradients(model, shared, private, samples, Loss(16), radii)
    _agree(replace(block, shared=dense), expected, 1e-10)


def test_items_outside_the_catalogue_are_refused() -> None:
    model = NeuMF(4)
    shared, private, _ = _block(model, torch.float32, positives=(1,))
    for item in (-1, NUM_ITEMS):
        bad = [Samples(np.array([item]), np.array([1], dtype=np.float32))]
        with pytest.raises(ValueError, match=r"item indices must lie in 0\.\.49"):
            model.block_gradients(shared, private, bad, Loss(128), Radii())


def test_pairs_carry_the_weights_of_their_samples() -> None:
    """Slices of 2: weights 1/2, 1/2, 1. Item 3 is drawn as positive, then twice as negative."""
    samples = Samples(np.array([3, 3, 3]), np.array([1, 0, 0], dtype=np.float32))
    other = Samples(np.array([5, 3]), np.array([0, 1], dtype=np.float32))
    pairs = distinct_pairs([samples, other], 9, Loss(2), torch.zeros(1, dtype=torch.float64))
    assert isinstance(pairs, WeightedPairs)
    assert pairs.bounds == [0, 1, 3]
    assert pairs.items_R.tolist() == [3, 5]
    assert pairs.rows_P.tolist() == [0, 0, 1]
    assert pairs.users_P.tolist() == [0, 1, 1]
    assert pairs.total_P.tolist() == [2.0, 0.5, 0.5]
    assert pairs.positive_P.tolist() == [0.5, 0.5, 0.0]


@pytest.mark.parametrize("dense_cells", [0, 10**6])
@pytest.mark.parametrize("radii", RADII, ids=str)
def test_both_sums_of_item_gmf(
    monkeypatch: pytest.MonkeyPatch, radii: Radii, dense_cells: int
) -> None:
    monkeypatch.setattr(neumf_block, "DENSE_CELLS", dense_cells)
    model = NeuMF(4)
    shared, private, samples = _block(model, torch.float64)
    expected = loop_gradients(model, shared, private, samples, Loss(16), radii)
    _agree(model.block_gradients(shared, private, samples, Loss(16), radii), expected, 1e-10)


def test_groups_keep_users_whole() -> None:
    rng = np.random.default_rng(0)
    samples = [_samples(rng, n) for n in POSITIVES]
    pairs = distinct_pairs(samples, NUM_ITEMS, Loss(), torch.zeros(1))
    parts = list(groups(pairs, 30))
    assert [p.users.start for p in parts] + [len(POSITIVES)] == [0] + [p.users.stop for p in parts]
    for part in parts:
        assert len(part) == part.pairs.stop - part.pairs.start
        assert len(part) <= 30 or part.users.stop - part.users.start == 1


@pytest.mark.parametrize("local_epochs", [1, 2])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_cohort_update_is_the_sum_of_client_updates(dtype: torch.dtype, local_epochs: int) -> None:
    """Two rounds: the second starts with different step counters and moments."""
    config = FedRecGELConfig(sam=SAMConfig(0.3, 0.2), local_epochs=local_epochs)
    strategy = FedRecGEL(config, NeuMF(4))
    shared, private, _ = _block(NeuMF(4), dtype, positives=(4, 9, 30))
    rows = [strategy.init_private(NUM_ITEMS, np.random.default_rng(u)) for u in range(3)]
    block = {n: torch.stack([row[n] for row in rows]).to(dtype) for n in rows[0]} | private
    rng = np.random.default_rng(1)
    rngs = [np.random.default_rng(0)] * 3
    for _ in range(2):
        epochs = [[_samples(rng, n) for _ in range(local_epochs)] for n in (4, 9, 30)]
        each = [
            strategy.client_update(shared, {n: t[u] for n, t in block.items()}, epochs[u], rngs[u])
            for u in range(3)
        ]
        cohort = strategy.cohort_update(shared, block, epochs, rngs)
        summed = {n: torch.stack([e.update.tensors[n] for e in each]).sum(0) for n in shared}
        stacked = {n: torch.stack([e.private[n] for e in each]) for n in block}
        assert _difference(cohort.update.tensors, summed) < TOLERANCE[dtype]
        assert _difference(cohort.private, stacked) < TOLERANCE[dtype]
        assert cohort.update.weight == 3
        for name, value in cohort.metrics.items():
            assert value == pytest.approx(sum(e.metrics[name] for e in each), rel=TOLERANCE[dtype])
        block = cohort.private
