"""FedProx: a step by hand, torch's own gradient of the whole objective, and μ = 0 is FedAvg."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from conf.compose import compose
from conf.tree import ConfigError
from models.base import ScoringModel
from models.local_sgd import SGDRates, rowwise_sgd
from models.mf import ITEM, USER, MatrixFactorisation
from models.neumf import NeuMF
from models.types import Samples, SumOfUpdates, Tensors
from strategies.fedavg import FedAvg, FedAvgConfig
from strategies.fedprox import FedProx, FedProxConfig

NUM_ITEMS = 19
MODEL = MatrixFactorisation(factors=4, init_std=0.5)
BASE = FedProxConfig(batch_size=8, shared_lr=0.7, private_lr=0.4, mu=0.5)
RNG = np.random.default_rng(0)
# float64 rounding of some hundred terms: 20 · 1e-16, far below.
EXACT = 1e-10


def epochs_of(user: int, *positives: int, num_items: int = NUM_ITEMS) -> list[Samples]:
    """One epoch for each number of positives, with four negatives a positive."""
    rng = np.random.default_rng([user, *positives])
    labels = [np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), n) for n in positives]
    return [Samples(rng.integers(0, num_items, len(own)), own) for own in labels]


def drawn(model: ScoringModel, num_items: int, dtype: torch.dtype) -> tuple[Tensors, Tensors]:
    """Shared parameters and the private ones of three users."""
    rng = np.random.default_rng(1)
    shared = {n: t.to(dtype) for n, t in model.init_shared(num_items, rng).items()}
    rows = [model.init_private(num_items, rng) for _ in range(3)]
    return shared, {n: torch.stack([row[n] for row in rows]).to(dtype) for n in rows[0]}


def test_two_steps_by_hand() -> None:
    """D = 1, q = 2, p = 1, two positive batches of the item; rates 1, μ = 1/4.

    Step 1 is FedAvg's, as q has not moved: e = σ(2) - 1, q' = 2 - e, p' = 1 - 2e. Step 2 has
    the error f = σ(q'p') - 1 and the proximal gradient (q' - 2)/4 = -e/4 at the same q':
    q'' = q' - f·p' + e/4, that is a movement of -e·(1 - 1/4) - f·p'. p'' = p' - f·q' has no term.
    """
    model = MatrixFactorisation(factors=1)
    prox = FedProx(FedProxConfig(batch_size=1, shared_lr=1.0, private_lr=1.0, mu=0.25), model)
    shared, private = {ITEM: torch.tensor([[2.0]]).double()}, {USER: torch.ones(1).double()}
    one = Samples(np.array([0]), np.array([1], dtype=np.float32))
    e = 1 / (1 + math.exp(-2)) - 1
    q, p = 2 - e, 1 - 2 * e
    f = 1 / (1 + math.exp(-q * p)) - 1
    result = prox.client_update(shared, private, [one, one], RNG)
    assert result.update.tensors[ITEM].item() == pytest.approx(-0.75 * e - f * p, rel=1e-12)
    assert result.private[USER].item() == pytest.approx(p - f * q, rel=1e-12)
    block = {USER: private[USER][None]}
    cohort = prox.cohort_update(shared, block, [[one, one]], [RNG]).update.tensors[ITEM]
    assert cohort.to_dense().item() == pytest.approx(-0.75 * e - f * p, rel=1e-12)


def test_local_training_descends_the_objective_of_the_paper() -> None:
    """Equation (2), F(w) + μ/2 · ‖w - w_t‖², differentiated by torch and stepped by torch's SGD."""
    shared, block = drawn(MODEL, NUM_ITEMS, torch.float64)
    epochs = epochs_of(0, 7, 7)
    result = FedProx(BASE, MODEL).client_update(shared, {USER: block[USER][0]}, epochs, RNG)
    items = torch.nn.Parameter(shared[ITEM].clone())
    user = torch.nn.Parameter(block[USER][0].clone())
    sgd = torch.optim.SGD([{"params": [items], "lr": 0.7}, {"params": [user], "lr": 0.4}])
    for epoch in epochs:
        index, labels = torch.from_numpy(epoch.items_S), torch.from_numpy(epoch.labels_S).double()
        for i, y in zip(index.split(8), labels.split(8), strict=True):
            sgd.zero_grad()
            loss = functional.binary_cross_entropy_with_logits(items[i] @ user, y)
            (loss + 0.5 / 2 * (items - shared[ITEM]).square().sum()).backward()  # type: ignore[no-untyped-call]
            sgd.step()
    moved = items.detach() - shared[ITEM]
    torch.testing.assert_close(
        result.update.tensors[ITEM] / len(epochs[0]), moved, rtol=EXACT, atol=EXACT
    )
    torch.testing.assert_close(result.private[USER], user.detach(), rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("num_items", [NUM_ITEMS, 3000], ids=["dense", "sparse"])
@pytest.mark.parametrize("model", [MODEL, NeuMF(factors=4)], ids=["mf", "neumf"])
@pytest.mark.parametrize("weighting", ["samples", "users", "rows"])
def test_without_mu_it_is_fedavg_to_the_bit(
    weighting: str, model: ScoringModel, num_items: int
) -> None:
    config = dataclasses.replace(BASE, weighting=weighting, mu=0.0, shared_lr=0.1)
    settings = {f.name: getattr(config, f.name) for f in dataclasses.fields(FedAvgConfig)}
    shared, block = drawn(model, num_items, torch.float32)
    epochs_U = [epochs_of(u, 2 * u + 1, 2 * u + 1, num_items=num_items) for u in range(3)]
    prox, avg = FedProx(config, model), FedAvg(FedAvgConfig(**settings), model)
    ours, theirs = (s.cohort_update(shared, block, epochs_U, [RNG] * 3) for s in (prox, avg))
    rows = {n: t[2] for n, t in block.items()}
    one, other = (s.client_update(shared, rows, epochs_U[2], RNG) for s in (prox, avg))
    for got, expected in (
        (ours.update.tensors, theirs.update.tensors),
        (ours.private, theirs.private),
        (one.update.tensors, other.update.tensors),
        (one.private, other.private),
    ):
        assert all(torch.equal(got[n].to_dense(), expected[n].to_dense()) for n in expected)
    assert dict(ours.metrics) == dict(theirs.metrics)


@pytest.mark.parametrize("num_items", [NUM_ITEMS, 3000], ids=["dense", "sparse"])
@pytest.mark.parametrize("model", [MODEL, NeuMF(factors=4)], ids=["mf", "neumf"])
def test_cohort_equals_the_sum_of_users(model: ScoringModel, num_items: int) -> None:
    """Users of 2, 12 and 5 mini-batches: who has no batch in a step must not be pulled in it."""
    prox = FedProx(dataclasses.replace(BASE, shared_lr=0.3), model)
    shared, block = drawn(model, num_items, torch.float64)
    epochs_U = [epochs_of(u, n, n, num_items=num_items) for u, n in enumerate((1, 9, 4))]
    total, own = SumOfUpdates(shared), SumOfUpdates(shared)
    cohort = prox.cohort_update(shared, block, epochs_U, [RNG] * 3)
    own.add(cohort.update)
    for u, epochs in enumerate(epochs_U):
        result = prox.client_update(shared, {n: t[u] for n, t in block.items()}, epochs, RNG)
        total.add(result.update)
        for name, tensor in result.private.items():
            torch.testing.assert_close(cohort.private[name][u], tensor, rtol=EXACT, atol=EXACT)
    for name, tensor in total.result().tensors.items():
        off = float((own.result().tensors[name] - tensor).norm())
        assert off <= EXACT * float(tensor.norm()), name


def test_lock_step_equals_user_by_user() -> None:
    shared, block = drawn(MODEL, NUM_ITEMS, torch.float64)
    batches_U = [[s for n in own for s in epochs_of(n, n)] for own in ((1, 2), (3, 1, 2, 5), (2,))]
    arguments = (shared, block, batches_U, [1.0, 2.0, 0.5], SGDRates(0.7, 0.4, 0.9))
    got, expected = MODEL.local_sgd(*arguments), rowwise_sgd(MODEL, *arguments)
    torch.testing.assert_close(
        got.moved[ITEM].to_dense(), expected.moved[ITEM].to_dense(), rtol=EXACT, atol=EXACT
    )
    torch.testing.assert_close(got.private[USER], expected.private[USER], rtol=EXACT, atol=EXACT)
    assert got.loss == pytest.approx(expected.loss, rel=EXACT)


def test_a_larger_mu_keeps_the_copy_nearer() -> None:
    shared, block = drawn(MODEL, NUM_ITEMS, torch.float64)
    epochs, lengths = epochs_of(0, 10, 10), []
    for mu in (0.0, 0.3, 1.0):
        prox = FedProx(dataclasses.replace(BASE, mu=mu), MODEL)
        update = prox.client_update(shared, {USER: block[USER][0]}, epochs, RNG).update
        lengths.append(float(update.tensors[ITEM].norm()))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[2] < 0.9 * lengths[0]


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["strategy.mu=-0.1"], r"strategy\.mu must not be negative, got -0\.1"),
        (
            ["strategy.mu=0.005"],
            r"strategy\.mu must be below 1 / shared_lr = 0\.005, got 0\.005: a local step",
        ),
        (["strategy.mu=0.1", "strategy.shared_lr=10"], r"below 1 / shared_lr = 0\.1, got 0\.1"),
    ],
)
def test_bad_settings_are_one_line(overrides: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        compose(["strategy=fedprox", *overrides])


def test_a_smaller_rate_allows_a_larger_mu() -> None:
    assert compose(["strategy=fedprox", "strategy.mu=0.09", "strategy.shared_lr=10"])
