"""Matrix factorisation: rounds of the cohort engine, in blocks of any size, equal the loop's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.mf import ITEM, MatrixFactorisation
from models.rng import Role, derive_rng
from models.types import Samples, SumOfUpdates, Tensors
from strategies.base import RecStrategy
from strategies.fedavg import FedAvg, FedAvgConfig
from strategies.fedmf import FedMF, FedMFConfig
from strategies.fedprox import FedProx, FedProxConfig
from strategies.fedrecgel import FedRecGEL, FedRecGELConfig
from strategies.sam_config import SAMConfig

POSITIVES = (1, 7, 40, 3, 12, 1, 25)
MODEL = MatrixFactorisation(factors=4, init_std=0.5)
STRATEGIES: dict[str, RecStrategy] = {
    "fedmf": FedMF(FedMFConfig(local_epochs=2, loss_slice=16), MODEL),
    "fedavg": FedAvg(
        FedAvgConfig(local_epochs=2, batch_size=16, shared_lr=0.7, private_lr=0.4), MODEL
    ),
    "fedprox": FedProx(
        FedProxConfig(local_epochs=2, batch_size=16, shared_lr=0.7, private_lr=0.4, mu=0.5), MODEL
    ),
    "fedrecgel": FedRecGEL(FedRecGELConfig(loss_slice=16, sam=SAMConfig(0.1, 0.2)), MODEL),
}
ROUNDS = 3
# A round rounds at 1e-15 (sums of some hundred float64 terms) and hands it to the next, whose
# steps of moderate rate may grow it by a small factor: far below 1e-10 after three.
EXACT = 1e-10


def epochs_of(strategy: RecStrategy, num_items: int, round_: int) -> list[list[Samples]]:
    def draw(user: int, epoch: int) -> Samples:
        rng = derive_rng(0, Role.TRAIN, user, round_, epoch)
        labels_S = np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), POSITIVES[user])
        return Samples(rng.integers(0, num_items, len(labels_S)), labels_S)

    epochs = range(strategy.config.local_epochs)
    return [[draw(user, epoch) for epoch in epochs] for user in range(len(POSITIVES))]


def rounds(
    strategy: RecStrategy, num_items: int, block: int, loop: bool
) -> tuple[Tensors, Tensors]:
    """Shared parameters and private rows after some rounds of all users."""
    update = RecStrategy.cohort_update if loop else type(strategy).cohort_update
    rngs = [derive_rng(0, Role.STRATEGY, user, 1) for user in range(len(POSITIVES))]
    drawn = [
        strategy.init_private(7, derive_rng(0, Role.INIT_PRIVATE, u)) for u in range(len(rngs))
    ]
    private = {n: torch.stack([row[n] for row in drawn]).double() for n in drawn[0]}
    start = strategy.init_shared(num_items, derive_rng(0, Role.INIT_SHARED))
    shared = {n: t.double() for n, t in start.items()}
    state = strategy.init_server_state(shared)
    for round_ in range(ROUNDS):
        total, parts = SumOfUpdates(shared), list[Tensors]()
        epochs_U = epochs_of(strategy, num_items, round_)
        for first in range(0, len(rngs), block):
            part = slice(first, first + block)
            rows = {n: t[part] for n, t in private.items()}
            result = update(strategy, shared, rows, epochs_U[part], rngs[part])
            total.add(result.update)
            parts.append(result.private)
        private = {n: torch.cat([rows[n] for rows in parts]) for n in private}
        shared, state = strategy.server_update(shared, total.result(), state)
    return shared, private


@pytest.mark.parametrize("num_items", [23, 2500], ids=["dense", "sparse"])
@pytest.mark.parametrize("block", [1, 3, 7])
@pytest.mark.parametrize("name", STRATEGIES)
def test_rounds_of_both_engines_agree(name: str, block: int, num_items: int) -> None:
    strategy = STRATEGIES[name]
    loop = rounds(strategy, num_items, len(POSITIVES), loop=True)
    cohort = rounds(strategy, num_items, block, loop=False)
    for got, expected in zip(cohort, loop, strict=True):
        for tensor in expected:
            torch.testing.assert_close(got[tensor], expected[tensor], rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("name", STRATEGIES)
def test_same_bytes_twice(name: str) -> None:
    first, second = (rounds(STRATEGIES[name], 2500, 3, loop=False) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(one[n], other[n]) for n in one)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("num_items", [23, 2500], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_updates_on_a_gpu_equal_the_cpu_s(name: str, num_items: int) -> None:
    strategy = STRATEGIES[name]
    shared = {ITEM: strategy.init_shared(num_items, derive_rng(0, Role.INIT_SHARED))[ITEM].double()}
    drawn = [strategy.init_private(7, derive_rng(0, Role.INIT_PRIVATE, u)) for u in range(7)]
    private = {n: torch.stack([row[n] for row in drawn]).double() for n in drawn[0]}
    epochs_U, rngs = epochs_of(strategy, num_items, 0), [np.random.default_rng(0)] * 7
    here = strategy.cohort_update(shared, private, epochs_U, rngs)
    there = strategy.cohort_update(
        {n: t.cuda() for n, t in shared.items()},
        {n: t.cuda() for n, t in private.items()},
        epochs_U,
        rngs,
    )
    pairs = [(there.update.tensors[ITEM], here.update.tensors[ITEM])]
    pairs += [(there.private[n], here.private[n]) for n in private]
    for got, expected in pairs:
        torch.testing.assert_close(
            got.to_dense().cpu(), expected.to_dense(), rtol=EXACT, atol=EXACT
        )
