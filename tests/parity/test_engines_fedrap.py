"""FedRAP: rounds of the cohort engine, in blocks of any size, equal the loop's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.linear import ITEM, LinearScoring
from models.rng import Role, derive_rng
from models.types import Samples, SumOfUpdates, Tensors
from strategies.base import RecStrategy
from strategies.fedrap import FedRAP, FedRAPConfig

POSITIVES = (1, 7, 40, 3, 12, 1, 25)
MODEL = LinearScoring(factors=4)
ROUNDS = 3
# A round rounds at 1e-15 (sums of some hundred float64 terms) and hands it to the next, whose
# steps of moderate rate may grow it by a small factor: far below 1e-10 after three.
EXACT = 1e-10


def strategy_for(num_items: int, weight_decay: float = 0.02) -> FedRAP:
    """Shared items move at a rate of 2 in any catalogue."""
    config = FedRAPConfig(
        local_epochs=2,
        batch_size=16,
        score_lr=0.4,
        own_lr=1.0,
        item_lr_factor=2 / num_items,
        weight_decay=weight_decay,
        round_decay=0.97,
        batch_decay=0.95,
        difference=0.3,
        sparsity=0.2,
    )
    return FedRAP(config, MODEL)


def epochs_of(num_items: int, round_: int) -> list[list[Samples]]:
    def draw(user: int, epoch: int) -> Samples:
        rng = derive_rng(0, Role.TRAIN, user, round_, epoch)
        labels_S = np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), POSITIVES[user])
        return Samples(rng.integers(0, num_items, len(labels_S)), labels_S)

    return [[draw(user, epoch) for epoch in range(2)] for user in range(len(POSITIVES))]


def rounds(
    strategy: FedRAP, num_items: int, block: int, update: object
) -> tuple[Tensors, Tensors, list[float]]:
    """Shared parameters, private rows and losses after some rounds of all users."""
    users = range(len(POSITIVES))
    drawn = [strategy.start_private(num_items, 0, user) for user in users]
    private = {n: torch.stack([row[n] for row in drawn]).double() for n in drawn[0]}
    start = strategy.init_shared(num_items, derive_rng(0, Role.INIT_SHARED))
    shared, losses = {n: t.double() for n, t in start.items()}, []
    state = strategy.init_server_state(shared)
    rngs = [derive_rng(0, Role.STRATEGY, user, 1) for user in users]
    for round_ in range(ROUNDS):
        total, parts, loss = SumOfUpdates(shared), list[Tensors](), 0.0
        epochs_U = epochs_of(num_items, round_)
        for first in range(0, len(POSITIVES), block):
            part = slice(first, first + block)
            rows = {n: t[part] for n, t in private.items()}
            result = update(strategy, shared, rows, epochs_U[part], rngs[part])  # type: ignore[operator]
            total.add(result.update)
            parts.append(dict(result.private))
            loss += result.metrics["loss"]
        private = {n: torch.cat([rows[n] for rows in parts]) for n in private}
        shared, state = strategy.server_update(shared, total.result(), state)
        losses.append(loss)
    return shared, private, losses


@pytest.mark.parametrize("weight_decay", [0.0, 0.02])
@pytest.mark.parametrize("num_items", [23, 2500], ids=["dense", "sparse"])
@pytest.mark.parametrize("block", [1, 3, 7])
def test_rounds_of_both_engines_agree(block: int, num_items: int, weight_decay: float) -> None:
    strategy = strategy_for(num_items, weight_decay)
    loop = rounds(strategy, num_items, len(POSITIVES), RecStrategy.cohort_update)
    cohort = rounds(strategy, num_items, block, FedRAP.cohort_update)
    for got, expected in zip(cohort[:2], loop[:2], strict=True):
        for name in expected:
            torch.testing.assert_close(got[name], expected[name], rtol=EXACT, atol=EXACT)
    assert cohort[2] == pytest.approx(loop[2], rel=EXACT)


def test_updates_of_few_users_in_a_large_catalogue_are_sparse() -> None:
    strategy = strategy_for(2500)
    shared = strategy.init_shared(2500, derive_rng(0, Role.INIT_SHARED))
    row = strategy.start_private(2500, 0, 0)
    block = {n: torch.stack([t] * len(POSITIVES)) for n, t in row.items()}
    rngs = [np.random.default_rng(0)] * len(POSITIVES)
    result = strategy.cohort_update(shared, block, epochs_of(2500, 0), rngs)
    assert result.update.tensors[ITEM].is_sparse


def test_same_bytes_twice() -> None:
    strategy = strategy_for(2500)
    first, second = (rounds(strategy, 2500, 3, FedRAP.cohort_update) for _ in range(2))
    for one, other in zip(first[:2], second[:2], strict=True):
        assert all(torch.equal(one[n], other[n]) for n in one)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_updates_on_a_gpu_equal_the_cpu_s() -> None:
    strategy = strategy_for(23)
    start = strategy.init_shared(23, derive_rng(0, Role.INIT_SHARED))
    shared = {n: t.double() for n, t in start.items()}
    row = strategy.start_private(23, 0, 0)
    block = {n: torch.stack([t.double()] * len(POSITIVES)) for n, t in row.items()}
    epochs_U, rngs = epochs_of(23, 0), [np.random.default_rng(0)] * len(POSITIVES)
    here = strategy.cohort_update(shared, block, epochs_U, rngs)
    on_gpu = [{n: t.cuda() for n, t in part.items()} for part in (shared, block)]
    there = strategy.cohort_update(*on_gpu, epochs_U, rngs)
    pairs = [(there.update.tensors[n], here.update.tensors[n]) for n in shared]
    pairs += [(there.private[n], here.private[n]) for n in block]
    for got, expected in pairs:
        torch.testing.assert_close(
            got.to_dense().cpu(), expected.to_dense(), rtol=EXACT, atol=EXACT
        )
