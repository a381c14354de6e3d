"""FedMF against hand-derived gradients and torch's own optimisers."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from models.mf import ITEM, USER, MatrixFactorisation
from models.rng import Role, derive_rng
from models.types import Samples, SumOfUpdates, Tensors
from strategies.fedmf import FedMF, FedMFConfig

NUM_ITEMS = 19
MODEL = MatrixFactorisation(factors=4, init_std=0.5)
RNG = np.random.default_rng(0)
# float64 rounding of some hundred terms over a few rounds is below 1e-13.
EXACT = 1e-10


def samples(user: int, round_: int = 0, positives: int = 7) -> Samples:
    rng = derive_rng(0, Role.TRAIN, user, round_)
    labels_S = np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), positives)
    return Samples(rng.integers(0, NUM_ITEMS, len(labels_S)), labels_S)


def shared_of() -> Tensors:
    return {ITEM: MODEL.init_shared(NUM_ITEMS, np.random.default_rng(0))[ITEM].double()}


def private_of(fedmf: FedMF, user: int) -> Tensors:
    drawn = fedmf.init_private(NUM_ITEMS, derive_rng(0, Role.INIT_PRIVATE, user))
    return {n: t.double() for n, t in drawn.items()}


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=EXACT, atol=EXACT)


def torch_loss(
    item_emb: torch.Tensor, user_emb: torch.Tensor, epoch: Samples, loss_slice: int
) -> torch.Tensor:
    """Sum over slices of the mean loss of a slice."""
    items, labels = torch.from_numpy(epoch.items_S), torch.from_numpy(epoch.labels_S).double()
    losses = [
        functional.binary_cross_entropy_with_logits(item_emb[i] @ user_emb, y)
        for i, y in zip(items.split(loss_slice), labels.split(loss_slice), strict=True)
    ]
    return torch.stack(losses).sum()


def test_one_step_by_hand() -> None:
    """D = 1, p = 1, q = (2, 0), a positive and a negative sample; both steps are plain SGD.

    e0 = (σ(2) - 1)/2 and e1 = σ(0)/2 = 1/4. The upload is e·p, the user moves by -3·(e0·2),
    and the upload uses p from before that.
    """
    config = FedMFConfig(
        private_optimiser="sgd", private_lr=3.0, server_optimiser="sgd", server_lr=2.0
    )
    fedmf = FedMF(config, MatrixFactorisation(factors=1))
    shared, private = {ITEM: torch.tensor([[2.0], [0.0]]).double()}, {USER: torch.ones(1).double()}
    epoch = Samples(np.array([0, 1]), np.array([1, 0], dtype=np.float32))
    result = fedmf.client_update(shared, private, [epoch], RNG)
    error = (1 / (1 + math.exp(-2)) - 1) / 2
    assert result.update.tensors[ITEM].flatten().tolist() == pytest.approx([error, 0.25])
    assert result.private[USER].item() == pytest.approx(1 - 3 * 2 * error)
    assert set(result.private) == {USER}
    moved, _ = fedmf.server_update(shared, result.update, fedmf.init_server_state(shared))
    assert moved[ITEM].flatten().tolist() == pytest.approx([2 - 2 * error, -0.5])


def test_rounds_equal_torch_adam_on_both_sides() -> None:
    """Three rounds of two users: two torch Adams for the users, one for the mean gradient."""
    config = FedMFConfig(server_lr=0.05, private_lr=0.1, loss_slice=16)
    fedmf = FedMF(config, MODEL)
    shared = shared_of()
    server_state = fedmf.init_server_state(shared)
    block = [private_of(fedmf, user) for user in range(2)]
    item_emb = torch.nn.Parameter(shared[ITEM].clone())
    users = [torch.nn.Parameter(private[USER].clone()) for private in block]
    server = torch.optim.Adam([item_emb], lr=0.05)
    own = [torch.optim.Adam([user], lr=0.1) for user in users]
    for round_ in range(3):
        total = SumOfUpdates(shared)
        server.zero_grad()
        for user in range(2):
            epoch = samples(user, round_)
            result = fedmf.client_update(shared, block[user], [epoch], RNG)
            block[user] = dict(result.private)
            total.add(result.update)
            own[user].zero_grad()
            (torch_loss(item_emb, users[user], epoch, 16)).backward()  # type: ignore[no-untyped-call]
            own[user].step()
        assert item_emb.grad is not None
        item_emb.grad /= 2
        server.step()
        shared, server_state = fedmf.server_update(shared, total.result(), server_state)
        close(shared[ITEM], item_emb.detach())
        for user in range(2):
            close(block[user][USER], users[user].detach())


def test_upload_is_the_mean_over_epochs_of_gradients_at_the_moving_user_vector() -> None:
    config = FedMFConfig(local_epochs=2, private_optimiser="sgd", private_lr=0.5)
    fedmf = FedMF(config, MODEL)
    epochs = [samples(0, 0), samples(0, 1)]
    result = fedmf.client_update(shared_of(), private_of(fedmf, 0), epochs, RNG)
    item_emb = shared_of()[ITEM].requires_grad_()
    user_emb = private_of(fedmf, 0)[USER].requires_grad_()
    gradients, losses = [], []
    for epoch in epochs:
        loss = torch_loss(item_emb, user_emb, epoch, 128)
        gradient, step = torch.autograd.grad(loss, (item_emb, user_emb))
        user_emb = (user_emb - 0.5 * step).detach().requires_grad_()
        gradients.append(gradient)
        losses.append(loss.item())
    close(result.update.tensors[ITEM], (gradients[0] + gradients[1]) / 2)
    close(result.private[USER], user_emb.detach())
    assert result.metrics == pytest.approx({"loss": sum(losses) / 2, "num_samples": 70})
    assert result.update.weight == 1


def test_moments_persist_in_the_private_state() -> None:
    fedmf = FedMF(FedMFConfig(), MODEL)
    start = private_of(fedmf, 0)
    once = fedmf.client_update(shared_of(), start, [samples(0)], RNG).private
    twice = fedmf.client_update(shared_of(), dict(once), [samples(0)], RNG).private
    assert start.keys() == twice.keys()
    assert float(twice["adam_step"]) == 2
    assert set(fedmf.private_parameters(start)) == {USER}


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_cohort_equals_the_sum_of_users_over_two_epochs(optimiser: str) -> None:
    config = dataclasses.replace(FedMFConfig(local_epochs=2), private_optimiser=optimiser)
    fedmf = FedMF(config, MODEL)
    rows = [private_of(fedmf, user) for user in range(3)]
    epochs_U = [[samples(u, e, positives=n) for e in range(2)] for u, n in enumerate((1, 40, 6))]
    results = [fedmf.client_update(shared_of(), rows[u], epochs_U[u], RNG) for u in range(3)]
    block = {n: torch.stack([row[n] for row in rows]) for n in rows[0]}
    cohort = fedmf.cohort_update(shared_of(), block, epochs_U, [RNG] * 3)
    close(
        cohort.update.tensors[ITEM],
        sum((r.update.tensors[ITEM] for r in results[1:]), results[0].update.tensors[ITEM]),
    )
    for name, private in cohort.private.items():
        close(private, torch.stack([r.private[name] for r in results]))
    assert cohort.update.weight == 3
    assert cohort.metrics["loss"] == pytest.approx(sum(r.metrics["loss"] for r in results))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"private_lr": 0.0}, r"private_lr must be positive, got 0\.0"),
        ({"loss_slice": 0}, "loss_slice must be at least 1, got 0"),
        ({"server_lr": -1.0}, r"server_lr must be positive, got -1\.0"),
    ],
)
def test_bad_settings(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedMFConfig(**changes)  # type: ignore[arg-type]


def test_unknown_private_optimiser() -> None:
    config = FedMFConfig(private_optimiser="lamb")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown optimiser 'lamb'"):
        FedMF(config, MODEL).init_private(NUM_ITEMS, RNG)
