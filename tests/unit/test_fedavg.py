"""FedAvg against hand-derived steps, an independent torch implementation and known identities."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from models.losses import Loss
from models.mf import ITEM, USER, MatrixFactorisation
from models.neumf import NeuMF
from models.rng import Role, derive_rng
from models.sam import Radii
from models.types import ClientResult, Samples, SumOfUpdates, Tensors, Update
from strategies.fedavg import FedAvg, FedAvgConfig

NUM_ITEMS = 19
MODEL = MatrixFactorisation(factors=4, init_std=0.5)
# Moderate rates: a few local steps then do not amplify rounding.
BASE = FedAvgConfig(batch_size=16, shared_lr=0.7, private_lr=0.4, weighting="samples")
# float64 rounding of some hundred terms: 20 · 1e-16, far below.
EXACT = 1e-10


def strategy(**changes: object) -> FedAvg:
    return FedAvg(dataclasses.replace(BASE, **changes), MODEL)


def samples(user: int, positives: int, num_items: int = NUM_ITEMS) -> Samples:
    rng = derive_rng(0, Role.TRAIN, user, positives)
    labels_S = np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), positives)
    return Samples(rng.integers(0, num_items, len(labels_S)), labels_S)


def shared_of(model: MatrixFactorisation | NeuMF = MODEL) -> Tensors:
    return {
        n: t.double() for n, t in model.init_shared(NUM_ITEMS, np.random.default_rng(0)).items()
    }


def private_of(user: int) -> Tensors:
    drawn = MODEL.init_private(NUM_ITEMS, derive_rng(0, Role.INIT_PRIVATE, user))
    return {n: t.double() for n, t in drawn.items()}


def train(fedavg: FedAvg, user: int, *epochs: Samples) -> ClientResult:
    rng = derive_rng(0, Role.STRATEGY, user)
    return fedavg.client_update(shared_of(), private_of(user), epochs, rng)


def summed(results: list[ClientResult]) -> Update:
    total = SumOfUpdates(shared_of())
    for result in results:
        total.add(result.update)
    return total.result()


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=EXACT, atol=EXACT)


def test_one_step_by_hand() -> None:
    """Two samples in a batch, D = 1, p = 1, q = (2, 0): the loss is their mean.

    Item 0, positive: e0 = (σ(2) - 1)/2. Item 1, negative: e1 = σ(0)/2 = 1/4. With item rate 10
    and user rate 1: q0 moves by -10·e0·p, q1 by -10/4; p moves by -(e0·2 + e1·0).
    """
    model = MatrixFactorisation(factors=1)
    fedavg = FedAvg(FedAvgConfig(shared_lr=10.0, private_lr=1.0, weighting="users"), model)
    shared, private = {ITEM: torch.tensor([[2.0], [0.0]]).double()}, {USER: torch.ones(1).double()}
    epoch = Samples(np.array([0, 1]), np.array([1, 0], dtype=np.float32))
    result = fedavg.client_update(shared, private, [epoch], np.random.default_rng(0))
    error = (1 / (1 + math.exp(-2)) - 1) / 2
    assert result.update.tensors[ITEM].flatten().tolist() == pytest.approx([-10 * error, -2.5])
    assert result.private[USER].item() == pytest.approx(1 - 2 * error)
    loss = (math.log1p(math.exp(-2)) + math.log(2)) / 2
    assert result.metrics == pytest.approx({"loss": loss, "num_samples": 2})


@pytest.mark.parametrize("batch_size", [4, 16, 1000])
def test_local_training_equals_torch_sgd(batch_size: int) -> None:
    """Two epochs of 35 samples, with a short last batch, by torch's own SGD."""
    epochs = [samples(0, 7), samples(1, 7)]
    result = train(strategy(batch_size=batch_size), 0, *epochs)
    item_emb = torch.nn.Parameter(shared_of()[ITEM])
    user_emb = torch.nn.Parameter(private_of(0)[USER])
    sgd = torch.optim.SGD([{"params": [item_emb], "lr": 0.7}, {"params": [user_emb], "lr": 0.4}])
    for epoch in epochs:
        items, labels = torch.from_numpy(epoch.items_S), torch.from_numpy(epoch.labels_S).double()
        for i, y in zip(items.split(batch_size), labels.split(batch_size), strict=True):
            sgd.zero_grad()
            logits = (functional.embedding(i, item_emb) * user_emb).sum(1)
            functional.binary_cross_entropy_with_logits(logits, y).backward()  # type: ignore[no-untyped-call]
            sgd.step()
    # 35 samples an epoch are the user's weight.
    close(result.update.tensors[ITEM] / 35, item_emb.detach() - shared_of()[ITEM])
    close(result.private[USER], user_emb.detach())
    assert result.update.weight == 35


@pytest.mark.parametrize("weighting", ["samples", "users"])
def test_server_averages_the_users_tables(weighting: str) -> None:
    """Equation of Algorithm 1: the new table is the weighted mean of the users' tables."""
    fedavg = strategy(weighting=weighting)
    lengths = {0: 2, 1: 9, 2: 4}
    results = [train(fedavg, u, samples(u, n)) for u, n in lengths.items()]
    weights = [5.0 * n if weighting == "samples" else 1.0 for n in lengths.values()]
    tables = [
        shared_of()[ITEM] + r.update.tensors[ITEM] / w
        for r, w in zip(results, weights, strict=True)
    ]
    expected = sum(w * t for w, t in zip(weights, tables, strict=True)) / sum(weights)
    state = fedavg.init_server_state(shared_of())
    moved, state = fedavg.server_update(shared_of(), summed(results), state)
    close(moved[ITEM], torch.as_tensor(expected))
    assert state == {}


def test_rows_are_averaged_over_the_users_that_touched_them() -> None:
    """User 0 has samples of items 0..4 only, user 1 of 0..9: rows 5..9 are user 1's alone."""
    fedavg = strategy(weighting="rows")
    epochs = [samples(0, 40, num_items=5), samples(1, 40, num_items=10)]
    results = [train(fedavg, u, epoch) for u, epoch in enumerate(epochs)]
    first, second = (r.update.tensors[ITEM] for r in results)
    total = summed(results)
    assert total.row_weights is not None
    assert total.row_weights[ITEM].tolist() == [2.0] * 5 + [1.0] * 5 + [0.0] * 9
    moved, _ = fedavg.server_update(shared_of(), total, {})
    movement = moved[ITEM] - shared_of()[ITEM]
    close(movement[:5], (first[:5] + second[:5]) / 2)
    close(movement[5:10], second[5:10])
    assert not movement[10:].any()


def test_full_batches_and_equal_users_are_gradient_descent() -> None:
    """With one local step, the mean of the users' tables is one step along the mean gradient."""
    fedavg = strategy(weighting="users", batch_size=1000)
    epochs = [samples(u, 3 + u) for u in range(3)]
    moved, _ = fedavg.server_update(
        shared_of(), summed([train(fedavg, u, e) for u, e in enumerate(epochs)]), {}
    )
    users = {USER: torch.stack([private_of(u)[USER] for u in range(3)])}
    gradients = MODEL.block_gradients(shared_of(), users, epochs, Loss(1000), Radii())
    close(moved[ITEM], shared_of()[ITEM] - 0.7 * gradients.shared[ITEM] / 3)


@pytest.mark.parametrize("model", [MODEL, NeuMF(factors=4)], ids=["mf", "neumf"])
@pytest.mark.parametrize("weighting", ["samples", "users", "rows"])
@pytest.mark.parametrize("batch_size", [16, 1000])
def test_cohort_equals_the_sum_of_users(
    model: MatrixFactorisation | NeuMF, weighting: str, batch_size: int
) -> None:
    config = dataclasses.replace(BASE, weighting=weighting, batch_size=batch_size, shared_lr=0.1)
    fedavg, shared = FedAvg(config, model), shared_of(model)
    rngs = [derive_rng(0, Role.INIT_PRIVATE, u) for u in range(4)]
    rows = [{n: t.double() for n, t in fedavg.init_private(NUM_ITEMS, rng).items()} for rng in rngs]
    epochs_U = [[samples(u, n), samples(u + 9, n)] for u, n in enumerate((1, 12, 3, 30))]
    results = [fedavg.client_update(shared, rows[u], epochs_U[u], rngs[u]) for u in range(4)]
    total = SumOfUpdates(shared)
    for result in results:
        total.add(result.update)
    block = {n: torch.stack([row[n] for row in rows]) for n in rows[0]}
    cohort = fedavg.cohort_update(shared, block, epochs_U, rngs)
    expected = total.result()
    for name, tensor in expected.tensors.items():
        off = float((cohort.update.tensors[name] - tensor).norm())
        assert off <= EXACT * float(tensor.norm())
    assert cohort.update.weight == expected.weight
    assert (cohort.update.row_weights is None) == (weighting != "rows")
    for name, weights in (expected.row_weights or {}).items():
        assert torch.equal((cohort.update.row_weights or {})[name], weights)
    for name, private in cohort.private.items():
        close(private, torch.stack([r.private[name] for r in results]))


def test_network_weights_are_averaged_over_all_users_with_row_weighting() -> None:
    model = NeuMF(factors=4)
    fedavg = FedAvg(dataclasses.replace(BASE, weighting="rows"), model)
    shared = shared_of(model)
    update = {n: torch.ones_like(t) for n, t in shared.items()}
    counts = {n: torch.full((NUM_ITEMS,), 2.0).double() for n in model.item_tables}
    moved, _ = fedavg.server_update(shared, Update(update, 4.0, counts), {})
    for name in shared:
        step = 0.5 if name in model.item_tables else 0.25
        close(moved[name] - shared[name], torch.full_like(shared[name], step))


def test_server_adam_descends_against_the_movement() -> None:
    """FedAdam: its first step has length server_lr in the direction of the mean movement."""
    fedavg = strategy(server_optimiser="adam", server_lr=0.01, weighting="users")
    shared = shared_of()
    movement = {ITEM: torch.full_like(shared[ITEM], 3.0)}
    state = fedavg.init_server_state(shared)
    moved, state = fedavg.server_update(shared, Update(movement, 2.0), state)
    # Adam's eps of 1e-8 beside a gradient of 1.5 shortens the step by 7e-9 of itself.
    torch.testing.assert_close(
        moved[ITEM] - shared[ITEM], torch.full_like(shared[ITEM], 0.01), rtol=1e-7, atol=1e-9
    )
    assert float(state["adam_step"]) == 1


def test_rows_weighting_needs_row_weights() -> None:
    update = Update({ITEM: torch.ones_like(shared_of()[ITEM])}, 1.0)
    with pytest.raises(ValueError, match="needs the row weights"):
        strategy(weighting="rows").server_update(shared_of(), update, {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"shared_lr": 0.0}, r"shared_lr must be positive, got 0\.0"),
        ({"private_lr": -1.0}, r"private_lr must be positive, got -1\.0"),
        ({"weighting": "items"}, "weighting must be one of samples, users, rows, got 'items'"),
        ({"local_epochs": 0}, "local_epochs must be at least 1, got 0"),
    ],
)
def test_bad_settings(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        strategy(**changes)
