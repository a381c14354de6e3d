"""FedRAP: an independent torch implementation, its schedules, scoring, settings."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from models.linear import BIAS, ITEM, WEIGHT, LinearScoring
from models.mf import MatrixFactorisation
from models.rng import Role, derive_rng
from models.types import History, Samples, Tensors
from strategies.fedrap import OWN, ROUNDS, FedRAP, FedRAPConfig

NUM_ITEMS = 5
MODEL = LinearScoring(factors=4, init_std=0.5)
# Moderate rates: a few local steps then do not amplify rounding.
BASE = FedRAPConfig(
    local_epochs=2,
    batch_size=10,
    score_lr=0.2,
    own_lr=1.5,
    item_lr_factor=0.5,
    weight_decay=0.01,
    round_decay=0.97,
    batch_decay=0.95,
    difference=0.3,
    sparsity=0.2,
)
# float64 rounding of some hundred terms: 20 · 1e-16, far below.
EXACT = 1e-10
NO_HISTORY = History(np.empty(0, dtype=np.int64), np.zeros(2, dtype=np.int64))


def strategy(**changes: object) -> FedRAP:
    return FedRAP(dataclasses.replace(BASE, **changes), MODEL)


def start(fedrap: FedRAP, finished: int = 7) -> tuple[Tensors, Tensors]:
    shared = fedrap.init_shared(NUM_ITEMS, derive_rng(0, Role.INIT_SHARED))
    private = fedrap.start_private(NUM_ITEMS, seed=0, user=0)
    shared = {n: t.double() for n, t in shared.items()}
    shared[ROUNDS] += finished
    return shared, {n: t.double() for n, t in private.items()}


def epoch(seed: int) -> Samples:
    """Two batches of 10 that hold every item twice, so that all rows decay in each."""
    rng = derive_rng(seed, Role.TRAIN)
    order = np.concatenate([rng.permutation(np.arange(10) % NUM_ITEMS) for _ in range(2)])
    return Samples(order, (rng.random(20) < 0.4).astype(np.float32))


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=EXACT, atol=EXACT)


def by_torch(shared: Tensors, private: Tensors, epochs: list[Samples], frozen: bool) -> Tensors:
    """The paper's local training in the eighth round, by torch's optimiser and schedule."""
    local = {ITEM: shared[ITEM], **private}
    leaves = {n: t.clone().requires_grad_(not (frozen and n == ITEM)) for n, t in local.items()}
    decay, phase = 0.97**7, math.tanh(0.7)
    groups = [
        {"params": [leaves[WEIGHT], leaves[BIAS]], "lr": 0.2 * decay},
        {"params": [leaves[OWN]], "lr": 1.5 * decay},
        *([] if frozen else [{"params": [leaves[ITEM]], "lr": 0.5 * NUM_ITEMS * decay}]),
    ]
    sgd = torch.optim.SGD(groups, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(sgd, gamma=0.95)
    for samples in epochs:
        items, labels = torch.from_numpy(samples.items_S), torch.from_numpy(samples.labels_S)
        for i, y in zip(items.split(10), labels.double().split(10), strict=True):
            sgd.zero_grad()
            own, copy = leaves[OWN][i], leaves[ITEM][i]
            predicted = torch.sigmoid((own + copy) @ leaves[WEIGHT] + leaves[BIAS])
            loss = functional.binary_cross_entropy(predicted, y)
            loss = loss - 0.3 * phase * ((own - copy) ** 2).mean() + 0.2 * phase * copy.abs().mean()
            loss.backward()
            sgd.step()
            schedule.step()
    return {n: t.detach() for n, t in leaves.items()}


def test_local_training_equals_torch() -> None:
    fedrap, epochs = strategy(), [epoch(0), epoch(1)]
    shared, private = start(fedrap)
    expected = by_torch(shared, private, epochs, frozen=False)
    result = fedrap.client_update(shared, private, epochs, np.random.default_rng(0))
    close(result.update.tensors[ITEM], expected[ITEM] - shared[ITEM])
    for name in private:
        close(result.private[name], expected[name])
    assert float(result.update.tensors[ROUNDS]) == result.update.weight == 1


def test_a_latecomer_leaves_the_shared_table_as_it_is() -> None:
    fedrap, epochs = strategy(), [epoch(0), epoch(1)]
    shared, private = start(fedrap)
    expected = by_torch(shared, private, epochs, frozen=True)
    adapted = fedrap.adapt(shared, private, epochs, np.random.default_rng(0))
    assert adapted.keys() == private.keys()
    for name in private:
        close(adapted[name], expected[name])


def test_rows_outside_a_batch_do_not_decay() -> None:
    """Of either table, in either engine; the scorer decays in every batch."""
    fedrap = strategy()
    shared, private = start(fedrap)
    two = Samples(np.array([3, 1]), np.array([1, 0], dtype=np.float32))
    rng = np.random.default_rng(0)
    alone = fedrap.client_update(shared, private, [two], rng)
    block = {n: t[None] for n, t in private.items()}
    cohort = fedrap.cohort_update(shared, block, [[two]], [rng])
    for moved in (alone.update.tensors[ITEM], cohort.update.tensors[ITEM].to_dense()):
        assert moved.any(1).tolist() == [False, True, False, True, False]
    for own in (alone.private[OWN], cohort.private[OWN][0]):
        assert (own != private[OWN]).any(1).tolist() == [False, True, False, True, False]


def test_schedules_by_hand() -> None:
    """After ten rounds: rates · 0.97^10, regularisers · tanh 1; first round: none of them."""
    first, later = BASE.rates(0, 8), BASE.rates(10, 8)
    assert (first.difference, first.sparsity, first.at(0)) == (0, 0, (0.2, 1.5, 4.0))
    assert later.difference == pytest.approx(0.3 * math.tanh(1))
    assert later.sparsity == pytest.approx(0.2 * math.tanh(1))
    decay = 0.97**10 * 0.95**3
    assert later.at(3) == pytest.approx((0.2 * decay, 1.5 * decay, 0.5 * 8 * decay))
    constant = dataclasses.replace(BASE, curriculum="constant").rates(0, 8)
    assert (constant.difference, constant.sparsity) == (0.3, 0.2)


def test_the_server_counts_rounds_whatever_its_optimiser() -> None:
    fedrap = strategy(server_optimiser="adam", server_lr=0.01)
    shared, private = start(fedrap)
    update = fedrap.client_update(shared, private, [epoch(0)], np.random.default_rng(0)).update
    state = fedrap.init_server_state(shared)
    stepped, state = fedrap.server_update(shared, update, state)
    assert float(stepped[ROUNDS]) == 8
    # Adam's first step has the length of its rate, along the sign of the movement.
    signs_ID = update.tensors[ITEM].sign()
    torch.testing.assert_close(stepped[ITEM] - shared[ITEM], 0.01 * signs_ID, rtol=1e-4, atol=0)


def test_every_user_starts_alike_with_a_table_unlike_the_shared_one() -> None:
    fedrap = strategy()
    first, second = (fedrap.start_private(NUM_ITEMS, seed=3, user=u) for u in (0, 5))
    assert all(torch.equal(first[n], second[n]) for n in first)
    shared = fedrap.init_shared(NUM_ITEMS, derive_rng(3, Role.INIT_SHARED))
    assert not torch.equal(first[OWN], shared[ITEM])


def test_scores_are_of_the_sum_of_both_tables() -> None:
    """One factor, w = 2, b = 1: own (1, 0), shared (3, -1) score 9 and -1; own 0 scores 7, -1."""
    fedrap = FedRAP(BASE, LinearScoring(factors=1))
    shared = {ITEM: torch.tensor([[3.0], [-1.0]]), ROUNDS: torch.zeros(())}
    own_UID = torch.tensor([[[1.0], [0.0]], [[0.0], [0.0]]])
    block = {WEIGHT: torch.full((2, 1), 2.0), BIAS: torch.ones(2), OWN: own_UID}
    assert fedrap.scores_all(shared, block, NO_HISTORY).tolist() == [[9, -1], [7, -1]]
    items_UC = np.array([[1, 0, 0], [0, 1, 0]])
    found = fedrap.score_candidates(shared, block, items_UC, NO_HISTORY)
    assert found.tolist() == [[-1, 9, 9], [7, -1, 7]]


def test_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="fedrap needs model=linear"):
        FedRAP(BASE, MatrixFactorisation())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"score_lr": 0.0}, r"score_lr must be positive, got 0\.0"),
        ({"own_lr": 0.0}, r"own_lr must be positive, got 0\.0"),
        ({"item_lr_factor": -1.0}, r"item_lr_factor must be positive, got -1\.0"),
        ({"weight_decay": -0.1}, r"weight_decay must not be negative, got -0\.1"),
        ({"difference": -0.1}, r"difference must not be negative, got -0\.1"),
        ({"sparsity": -0.1}, r"sparsity must not be negative, got -0\.1"),
        ({"round_decay": 0.0}, r"round_decay must lie in 0\.\.1, above 0, got 0\.0"),
        ({"batch_decay": 1.1}, r"batch_decay must lie in 0\.\.1, above 0, got 1\.1"),
        ({"curriculum": "sin"}, "curriculum must be one of tanh, constant, got 'sin'"),
    ],
)
def test_bad_settings(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        strategy(**changes)
