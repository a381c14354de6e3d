"""Local SGD of a block: lock-step against user by user, and against the strategy's loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.local_sgd import LocallyTrained, SGDRates, rowwise_sgd
from models.mf import ITEM, USER, MatrixFactorisation
from models.types import Samples, SumOfUpdates, Tensors
from strategies.fedavg import FedAvg, FedAvgConfig, Weighting

MODEL = MatrixFactorisation(factors=3, init_std=0.5)
# Moderate rates: local steps then do not amplify rounding, which is sqrt(200) units in the
# last place for a sum of 200 terms: 1e-6 of a number near one in float32, 3e-15 in float64.
RATES = SGDRates(shared=0.7, private=0.4)
PRECISIONS = [(torch.float32, 1e-5), (torch.float64, 1e-10)]


def batches_of(sizes: list[list[int]], num_items: int, seed: int = 0) -> list[list[Samples]]:
    """Mini-batches of the given sizes for each user; items repeat within and between them."""
    rng = np.random.default_rng(seed)
    return [
        [
            Samples(rng.integers(0, num_items, n), (rng.random(n) < 0.3).astype(np.float32))
            for n in own
        ]
        for own in sizes
    ]


def start(num_items: int, num_users: int, dtype: torch.dtype) -> tuple[Tensors, Tensors]:
    rng = np.random.default_rng(1)
    shared = MODEL.init_shared(num_items, rng)[ITEM].to(dtype)
    users = torch.stack([MODEL.init_private(7, rng)[USER] for _ in range(num_users)]).to(dtype)
    return {ITEM: shared}, {USER: users}


def assert_same(got: LocallyTrained, expected: LocallyTrained, tolerance: float) -> None:
    for ours, theirs in (
        (got.moved[ITEM].to_dense(), expected.moved[ITEM].to_dense()),
        (got.private[USER], expected.private[USER]),
    ):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    assert got.loss == pytest.approx(expected.loss, rel=tolerance)


def test_two_steps_by_hand() -> None:
    """D = 1, q = 2, p = 1, two positive batches of the item, rates 1; weight 3 in the sum.

    Step 1 has score 2 and error e = σ(2) - 1, so q' = 2 - e and p' = 1 - 2e; step 2 starts
    there with error f = σ(q'p') - 1 and ends at q' - f·p' and p' - f·q'.
    """
    sigma = torch.sigmoid
    shared, users = {ITEM: torch.tensor([[2.0]]).double()}, {USER: torch.tensor([[1.0]]).double()}
    one = Samples(np.array([0]), np.array([1], dtype=np.float32))
    got = MatrixFactorisation(factors=1).local_sgd(
        shared, users, [[one, one]], [3.0], SGDRates(1.0, 1.0)
    )
    first = sigma(torch.tensor(2.0).double()) - 1
    q, p = 2 - first, 1 - 2 * first
    second = sigma(q * p) - 1
    assert got.moved[ITEM].item() == pytest.approx(3 * float(q - second * p - 2), rel=1e-12)
    assert got.private[USER].item() == pytest.approx(float(p - second * q), rel=1e-12)
    losses = [-torch.log(1 + first), -torch.log(1 + second)]
    assert got.loss == pytest.approx(float(sum(losses)) / 2, rel=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS, ids=["float32", "float64"])
@pytest.mark.parametrize("num_items", [7, 4000], ids=["repeats", "large"])
def test_lock_step_equals_user_by_user(
    num_items: int, dtype: torch.dtype, tolerance: float
) -> None:
    """Users with one and with many mini-batches, in an order that is not by size."""
    batches_U = batches_of([[16, 16, 3], [5], [16, 16, 16, 16, 1], [9], [1, 1]], num_items)
    shared, users = start(num_items, 5, dtype)
    arguments = (shared, users, batches_U, [1.0, 2.0, 0.5, 4.0, 3.0], RATES)
    expected = rowwise_sgd(MODEL, *arguments)
    assert_same(MODEL.local_sgd(*arguments), expected, tolerance)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=6), min_size=1, max_size=5),
    st.integers(1, 90),
    st.integers(0, 99),
)
def test_any_block_equals_user_by_user(sizes: list[list[int]], num_items: int, seed: int) -> None:
    batches_U = batches_of(sizes, num_items, seed)
    shared, users = start(num_items, len(sizes), torch.float64)
    arguments = (shared, users, batches_U, [1.0 + u for u in range(len(sizes))], RATES)
    assert_same(MODEL.local_sgd(*arguments), rowwise_sgd(MODEL, *arguments), 1e-10)


def test_inputs_are_not_modified() -> None:
    shared, users = start(7, 2, torch.float64)
    before = shared[ITEM].clone(), users[USER].clone()
    MODEL.local_sgd(shared, users, batches_of([[16, 3], [5]], 7), [1.0, 1.0], RATES)
    assert torch.equal(shared[ITEM], before[0])
    assert torch.equal(users[USER], before[1])


@pytest.mark.parametrize("weighting", ["samples", "users", "rows"])
def test_sparse_movements_of_a_cohort_are_the_sum_of_its_users(weighting: Weighting) -> None:
    """A large catalogue, three epochs."""
    config = FedAvgConfig(batch_size=8, shared_lr=0.7, private_lr=0.4, weighting=weighting)
    fedavg = FedAvg(config, MODEL)
    shared, users = start(4000, 3, torch.float64)
    epochs_U, rng = batches_of([[20, 20, 20], [7, 7, 7], [1, 1, 1]], 4000), np.random.default_rng(0)
    cohort = fedavg.cohort_update(shared, users, epochs_U, [rng] * 3)
    assert cohort.update.tensors[ITEM].is_sparse
    total, ours = SumOfUpdates(shared), SumOfUpdates(shared)
    ours.add(cohort.update)
    for user, epochs in enumerate(epochs_U):
        result = fedavg.client_update(shared, {USER: users[USER][user]}, epochs, rng)
        total.add(result.update)
        torch.testing.assert_close(
            cohort.private[USER][user], result.private[USER], rtol=1e-10, atol=1e-10
        )
    expected, got = total.result(), ours.result()
    torch.testing.assert_close(got.tensors[ITEM], expected.tensors[ITEM], rtol=1e-10, atol=1e-10)
    assert got.weight == expected.weight
    assert (got.row_weights is None) == (weighting != "rows")
    for name, counts in (expected.row_weights or {}).items():
        assert torch.equal((got.row_weights or {})[name], counts)
