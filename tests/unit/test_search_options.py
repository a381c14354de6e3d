"""What the search for a good FedRecGEL chooses from: cosine, dropout, hard negatives, rates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from models.cosine import CosineFactorisation
from models.dropout import dropped
from models.hard_negatives import hardest
from models.mf import ITEM, USER, MatrixFactorisation
from models.neumf import NeuMF
from models.rng import Role, derive_rng
from models.types import Samples, Tensors, Update
from strategies.fedncf import FedNCF
from strategies.fedrecgel import FedRecGEL

NUM_ITEMS = 30
ITEMS_32 = torch.tensor([[3.0, 4.0], [0.0, -2.0], [0.0, 0.0]])
USER_2 = torch.tensor([0.0, 5.0])


def _samples(user: int, positives: int = 5, negatives: int = 4) -> Samples:
    labels_S = np.tile(np.array([1] + [0] * negatives, dtype=np.float32), positives)
    rng = derive_rng(0, Role.TRAIN, user)
    return Samples(rng.integers(0, NUM_ITEMS, len(labels_S)), labels_S)


def _state(strategy: FedRecGEL, users: int = 3) -> tuple[Tensors, Tensors]:
    shared = strategy.init_shared(NUM_ITEMS, derive_rng(0, Role.INIT_SHARED))
    rows = [strategy.start_private(NUM_ITEMS, 0, user) for user in range(users)]
    shared = {n: t.double() for n, t in shared.items()}
    return shared, {n: torch.stack([row[n] for row in rows]).double() for n in rows[0]}


def _rngs(users: int = 3) -> list[np.random.Generator]:
    return [derive_rng(7, Role.STRATEGY, user) for user in range(users)]


# ---- cosine ----------------------------------------------------------------------------------
def test_cosines_times_the_gain_by_hand() -> None:
    """(3, 4) against (0, 5): cosine 4/5; opposite: −1; a zero row scores zero."""
    model = CosineFactorisation(factors=2, gain=10.0)
    found = model.logits({ITEM: ITEMS_32}, {USER: USER_2}, torch.tensor([0, 1, 2]))
    torch.testing.assert_close(found, torch.tensor([8.0, -10.0, 0.0]))


def test_all_ways_to_score_agree_and_lengths_do_not_count() -> None:
    model = CosineFactorisation(factors=2, gain=3.0)
    shared, block = {ITEM: ITEMS_32}, {USER: torch.stack([USER_2, 7 * USER_2])}
    all_UI = model.scores_all(shared, block)
    torch.testing.assert_close(all_UI[0], all_UI[1])
    every = torch.arange(3)
    torch.testing.assert_close(all_UI[0], model.logits(shared, {USER: USER_2}, every))
    some_U2 = model.score_candidates(shared, block, np.array([[1, 0], [0, 2]]))
    torch.testing.assert_close(some_U2, torch.tensor([[-3.0, 2.4], [2.4, 0.0]]))
    torch.testing.assert_close(model.scores(shared, block, np.array([2, 0])), all_UI[:, [2, 0]])
    torch.testing.assert_close(model.dot_items(shared), torch.tensor([[0.6, 0.8], [0, -1], [0, 0]]))


def test_a_row_of_the_gradient_is_orthogonal_to_the_row() -> None:
    strategy = FedRecGEL(FedRecGEL.Config(), CosineFactorisation(factors=4))
    shared, block = _state(strategy)
    h = strategy.model.block_gradients(
        shared,
        {USER: block[USER]},
        [_samples(u) for u in range(3)],
        strategy.loss,
        FedNCF(FedNCF.Config(), strategy.model).radii,
    )
    inner_I = (h.shared[ITEM] * shared[ITEM]).sum(1)
    assert h.shared[ITEM].abs().max() > 1e-3
    # Sums of four products of doubles of order one.
    torch.testing.assert_close(inner_I, torch.zeros_like(inner_I), atol=1e-13, rtol=0)


@pytest.mark.parametrize("gain", [0.0, -1.0, math.inf, math.nan])
def test_a_gain_that_is_none_is_refused(gain: float) -> None:
    with pytest.raises(ValueError, match="gain must be positive and finite"):
        CosineFactorisation(gain=gain)


# ---- dropout ---------------------------------------------------------------------------------
def test_entries_are_off_or_scaled_up_and_single_numbers_stay() -> None:
    private = {"vector": torch.ones(10_000), "bias": torch.tensor(2.0)}
    factors = dropped(MatrixFactorisation(), private, 0.25, derive_rng(0, Role.STRATEGY)).factors
    assert set(factors) == {"vector"}
    assert set(factors["vector"].tolist()) == {0.0, torch.tensor(4 / 3).item()}
    # Binomial: 10,000 draws of 1/4 have a standard deviation of 43; five of them.
    assert abs(int((factors["vector"] == 0).sum()) - 2500) < 5 * 43.3


def test_an_entry_that_is_off_does_not_move() -> None:
    """With momentum from nowhere, Adam moves exactly the entries with a gradient."""
    strategy = FedRecGEL(FedRecGEL.Config(user_dropout=0.5), MatrixFactorisation(16))
    shared, block = _state(strategy, users=1)
    private = {n: t[0] for n, t in block.items()}
    off = dropped(strategy.model, {USER: private[USER]}, 0.5, _rngs()[0]).factors[USER] == 0
    assert 0 < int(off.sum()) < 16
    after = strategy.client_update(shared, private, [_samples(0)], _rngs()[0]).private
    assert torch.equal(after[USER] == private[USER], off)


@pytest.mark.parametrize("settings", [{"user_dropout": 0.3}, {"hard_negatives": 2}])
@pytest.mark.parametrize("model", [MatrixFactorisation(8), NeuMF(4), CosineFactorisation(8)])
def test_a_block_is_trained_as_its_users_are(settings: dict[str, Any], model: Any) -> None:
    strategy = FedRecGEL(FedRecGEL.Config(**settings), model)
    shared, block = _state(strategy)
    epochs_U = [[_samples(user, 3 + user)] for user in range(3)]
    together = strategy.cohort_update(shared, block, epochs_U, _rngs())
    alone = [
        strategy.client_update(shared, {n: t[u] for n, t in block.items()}, epochs_U[u], rng)
        for u, rng in enumerate(_rngs())
    ]
    for name in shared:
        total = sum((each.update.tensors[name] for each in alone), torch.zeros(()))
        found = together.update.tensors[name].to_dense()
        # The same double products in another order, as in the contract tests.
        torch.testing.assert_close(found, total, atol=1e-10, rtol=1e-10)
    for name in block:
        rows = torch.stack([each.private[name] for each in alone])
        torch.testing.assert_close(together.private[name], rows, atol=1e-10, rtol=1e-10)


def test_no_dropout_draws_nothing() -> None:
    strategy = FedRecGEL(FedRecGEL.Config(), MatrixFactorisation(4))
    shared, block = _state(strategy, users=1)
    rng = _rngs()[0]
    strategy.client_update(shared, {n: t[0] for n, t in block.items()}, [_samples(0)], rng)
    assert rng.random() == _rngs()[0].random()


# ---- hard negatives --------------------------------------------------------------------------
def test_the_highest_scored_negatives_are_kept_in_their_order() -> None:
    """Scores are item numbers; of two equal items the earlier drawn comes first."""
    shared = {ITEM: torch.arange(6.0)[:, None]}
    drawn = Samples(
        np.array([0, 3, 5, 1, 2, 4, 2, 2]), np.array([1, 0, 0, 0, 1, 0, 0, 0], dtype=np.float32)
    )
    found = hardest(MatrixFactorisation(1), shared, {USER: torch.ones(1)}, drawn, 2)
    assert found.items_S.tolist() == [0, 5, 3, 2, 4, 2]
    assert found.labels_S.tolist() == [1, 0, 0, 1, 0, 0]
    none = Samples(np.empty(0, np.int64), np.empty(0, np.float32))
    assert len(hardest(MatrixFactorisation(1), shared, {USER: torch.ones(1)}, none, 2)) == 0
    with pytest.raises(ValueError, match="4 of 3 negatives a positive cannot be kept"):
        hardest(MatrixFactorisation(1), shared, {USER: torch.ones(1)}, drawn, 4)


def test_the_samples_that_count_are_those_that_are_kept() -> None:
    strategy = FedRecGEL(FedRecGEL.Config(hard_negatives=1), MatrixFactorisation(4))
    shared, block = _state(strategy)
    found = strategy.cohort_update(shared, block, [[_samples(u)] for u in range(3)], _rngs())
    assert found.metrics["num_samples"] == 3 * 5 * 2


# ---- the server's rate -----------------------------------------------------------------------
def test_the_rate_halves() -> None:
    """Plain steps of a gradient of one, half-life two: 1, 2^-½, ½, …"""
    strategy = FedRecGEL(
        FedRecGEL.Config(server_optimiser="sgd", server_lr=1.0, server_half_life=2.0),
        MatrixFactorisation(1),
    )
    shared = {ITEM: torch.zeros(2, 1, dtype=torch.float64)}
    state, moved = strategy.init_server_state(shared), []
    for _ in range(3):
        before = shared[ITEM][0, 0].item()
        summed = Update({ITEM: torch.full((2, 1), 4.0, dtype=torch.float64)}, 4.0)
        shared, state = strategy.server_update(shared, summed, state)
        moved.append(before - shared[ITEM][0, 0].item())
    assert moved == pytest.approx([1.0, 2**-0.5, 0.5], rel=1e-12)


@pytest.mark.parametrize(
    "settings",
    [
        {"user_dropout": 1.0},
        {"user_dropout": -0.1},
        {"hard_negatives": 0},
        {"hard_negatives": 5},
        {"server_half_life": 0.0},
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        FedRecGEL.Config(**settings)
