"""FedFast: rounds of the cohort engine, in blocks of any size, equal the loop's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.base import ScoringModel
from models.mf import MatrixFactorisation
from models.neumf import NeuMF
from models.rng import Role, derive_rng
from models.types import Samples, SumOfUpdates, Tensors
from strategies.base import RecStrategy
from strategies.fedfast import FedFast, FedFastConfig

POSITIVES = (1, 7, 40, 3, 12, 1, 25)
MODELS = {"mf": MatrixFactorisation(factors=4, init_std=0.5), "neumf": NeuMF(factors=4)}
CONFIG = FedFastConfig(local_epochs=2, batch_size=16, shared_lr=0.5, private_lr=0.4)
ROUNDS = 3
# A round rounds at 1e-15 (sums of some hundred float64 terms) and hands it to the next, whose
# steps of moderate rate may grow it by a small factor: far below 1e-10 after three.
EXACT = 1e-10


def epochs_of(num_items: int, round_: int) -> list[list[Samples]]:
    def draw(user: int, epoch: int) -> Samples:
        rng = derive_rng(0, Role.TRAIN, user, round_, epoch)
        labels_S = np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), POSITIVES[user])
        return Samples(rng.integers(0, num_items, len(labels_S)), labels_S)

    return [[draw(user, epoch) for epoch in range(2)] for user in range(len(POSITIVES))]


def rounds(
    model: ScoringModel, num_items: int, block: int, update: object
) -> tuple[Tensors, Tensors, list[float]]:
    """Shared parameters, private rows and losses after some rounds of all users."""
    strategy, users = FedFast(CONFIG, model), range(len(POSITIVES))
    start = [strategy.start_private(num_items, 0, user) for user in users]
    private = {n: torch.stack([row[n] for row in start]).double() for n in start[0]}
    drawn = strategy.init_shared(num_items, derive_rng(0, Role.INIT_SHARED))
    shared, losses = {n: t.double() for n, t in drawn.items()}, []
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


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("num_items", [23, 2500], ids=["dense", "sparse"])
@pytest.mark.parametrize("block", [1, 3, 7])
def test_rounds_of_both_engines_agree(block: int, num_items: int, model: str) -> None:
    loop = rounds(MODELS[model], num_items, len(POSITIVES), RecStrategy.cohort_update)
    cohort = rounds(MODELS[model], num_items, block, FedFast.cohort_update)
    for got, expected in zip(cohort[:2], loop[:2], strict=True):
        for name in expected:
            torch.testing.assert_close(got[name], expected[name], rtol=EXACT, atol=EXACT)
    assert cohort[2] == pytest.approx(loop[2], rel=EXACT)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_updates_on_a_gpu_equal_the_cpu_s() -> None:
    strategy = FedFast(CONFIG, MODELS["mf"])
    drawn = strategy.init_shared(23, derive_rng(0, Role.INIT_SHARED))
    shared = {n: t.double() for n, t in drawn.items()}
    rows = [strategy.start_private(23, 0, user) for user in range(len(POSITIVES))]
    block = {n: torch.stack([row[n] for row in rows]).double() for n in rows[0]}
    epochs_U, rngs = epochs_of(23, 0), [np.random.default_rng(0)] * len(POSITIVES)
    here = strategy.cohort_update(shared, block, epochs_U, rngs)
    on_gpu, block = ({n: t.cuda() for n, t in part.items()} for part in (shared, block))
    there = strategy.cohort_update(on_gpu, block, epochs_U, rngs)
    assert here.update.row_weights is not None
    assert there.update.row_weights is not None
    for name, tensor in shared.items():
        pairs = [
            (there.update.tensors[name].to_dense(), here.update.tensors[name].to_dense()),
            (there.update.row_weights[name], here.update.row_weights[name]),
        ]
        assert tensor.shape == pairs[0][0].shape
        for got, expected in pairs:
            torch.testing.assert_close(got.cpu(), expected, rtol=EXACT, atol=EXACT)
