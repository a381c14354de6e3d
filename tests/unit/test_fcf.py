"""FCF against hand-derived numbers, the gradient of its cost, and torch's Adam."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.als import ImplicitCost, solve_users, solved_users
from models.linear import LinearScoring
from models.mf import ITEM, USER, MatrixFactorisation
from models.types import History, Samples, SumOfUpdates, Tensors, Update
from strategies.fcf import FCF, FCFConfig

NUM_ITEMS = 13
MODEL = MatrixFactorisation(factors=4, init_std=0.5)
RNG = np.random.default_rng(0)
# Systems of 4 unknowns with condition numbers of some hundred: 1e-13 of the entries, which are
# of order one.
EXACT = 1e-10


def samples(*positives: int) -> Samples:
    """Each positive with a negative, which the method does not use."""
    items_S = np.array([item for p in positives for item in (p, (p + 1) % NUM_ITEMS)])
    return Samples(items_S, np.tile(np.array([1, 0], dtype=np.float32), len(positives)))


def items_of(seed: int = 0) -> Tensor:
    return MODEL.init_shared(NUM_ITEMS, np.random.default_rng(seed))[ITEM].double()


def private_of(fcf: FCF) -> Tensors:
    return {n: t.double() for n, t in fcf.init_private(NUM_ITEMS, RNG).items()}


def dense_cost(items_ID: Tensor, user_D: Tensor, own: list[int], cost: ImplicitCost) -> Tensor:
    """The cost over the whole catalogue, in the words of the paper."""
    r = torch.zeros(len(items_ID)).double()
    r[own] = 1
    c = 1 + cost.alpha * r
    return (c * (r - items_ID @ user_D) ** 2).sum() + cost.reg * (user_D @ user_D)


def test_one_user_by_hand() -> None:
    """D = 1, q = (1, 2), the first item is the user's, α = λ = 1.

    p = (1 + 4 + 1 + 1)⁻¹ · 2 = 2/7, scores (2/7, 4/7), f = (2 · 5/7 · 2/7, -4/7 · 2/7) =
    (20, -8)/49, cost 2 · (5/7)² + (4/7)² + (2/7)² = 70/49.
    """
    fcf = FCF(FCFConfig(alpha=1.0, user_reg=1.0), MatrixFactorisation(factors=1))
    shared = {ITEM: torch.tensor([[1.0], [2.0]]).double()}
    private = {USER: torch.tensor([5.0]).double()}
    positive = Samples(np.array([0, 1]), np.array([1, 0], dtype=np.float32))
    result = fcf.client_update(shared, private, [positive], RNG)
    assert result.private[USER].item() == pytest.approx(2 / 7)
    assert result.update.tensors[ITEM].flatten().tolist() == pytest.approx([20 / 49, -8 / 49])
    assert result.metrics == pytest.approx({"loss": 70 / 49, "num_samples": 2})
    assert result.update.weight == 1


def test_server_step_by_hand() -> None:
    """Two users with f = 3 in sum, q = 4, μ = 1/8: 4 - ½ (-2 · 3/2 + 2 · 4/8) = 5."""
    config = FCFConfig(server_optimiser="sgd", server_lr=0.5, item_reg=0.125)
    fcf = FCF(config, MatrixFactorisation(factors=1))
    shared = {ITEM: torch.tensor([[4.0]])}
    moved, state = fcf.server_update(shared, Update({ITEM: torch.tensor([[3.0]])}, 2.0), {})
    assert moved[ITEM].item() == pytest.approx(5)
    assert not state


histories = st.lists(
    st.sets(st.integers(0, NUM_ITEMS - 1), max_size=NUM_ITEMS), min_size=1, max_size=4
)


@given(histories, st.floats(0, 20), st.floats(0.05, 5), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_users_are_at_the_minimum_and_residuals_are_gradients(
    own_U: list[set[int]], alpha: float, reg: float, seed: int
) -> None:
    cost, items_ID = ImplicitCost(alpha, reg), items_of(seed).requires_grad_()
    own = [sorted(items) for items in own_U]
    flat = np.array([item for items in own for item in items], dtype=np.int64)
    history = History(flat, np.array([len(items) for items in own]))
    solved = solved_users(items_ID.detach(), history, cost)
    users_UD = solved.users_UD.clone().requires_grad_()
    costs = [dense_cost(items_ID, users_UD[u], items, cost) for u, items in enumerate(own)]
    by_user, by_item = torch.autograd.grad(torch.stack(costs).sum(), (users_UD, items_ID))
    # The gradient is a sum of terms of up to (1 + 20) · 10, of which the solver keeps 1e-13.
    torch.testing.assert_close(by_user, torch.zeros_like(by_user), rtol=0, atol=1e-9)
    torch.testing.assert_close(-2 * solved.residuals_ID, by_item, rtol=1e-9, atol=1e-9)
    expected_U = torch.stack(costs).detach()
    torch.testing.assert_close(solved.costs_U, expected_U, rtol=EXACT, atol=1e-9)
    again = solve_users(items_ID.detach(), history, cost)
    assert torch.equal(again, solved.users_UD)


def test_rounds_equal_torch_adam_on_the_cost_of_all_users() -> None:
    """With N = 3 users in every round the paper's λ is N times ``item_reg``; Adam rescales by N."""
    config = FCFConfig(alpha=2.0, user_reg=0.5, item_reg=0.1, server_lr=0.03)
    fcf, own = FCF(config, MODEL), [[0, 3], [5], [2, 3, 7, 9]]
    shared = {ITEM: items_of()}
    state = fcf.init_server_state(shared)
    item_emb = torch.nn.Parameter(shared[ITEM].clone())
    adam = torch.optim.Adam([item_emb], lr=0.03, eps=1e-8)
    for _ in range(3):
        total, costs = SumOfUpdates(shared), list[Tensor]()
        for items in own:
            result = fcf.client_update(shared, private_of(fcf), [samples(*items)], RNG)
            total.add(result.update)
            costs.append(dense_cost(item_emb, result.private[USER], items, fcf.cost))
        adam.zero_grad()
        paper = torch.stack(costs).sum() + 3 * config.item_reg * (item_emb**2).sum()
        (paper / 3).backward()  # type: ignore[no-untyped-call]
        adam.step()
        shared, state = fcf.server_update(shared, total.result(), state)
        torch.testing.assert_close(shared[ITEM], item_emb.detach(), rtol=EXACT, atol=EXACT)


def test_every_item_is_in_the_upload() -> None:
    fcf = FCF(FCFConfig(), MODEL)
    result = fcf.client_update({ITEM: items_of()}, private_of(fcf), [samples(1)], RNG)
    assert result.update.tensors[ITEM].all()


def test_repeated_positives_count_once_and_the_old_vector_does_not() -> None:
    fcf, shared = FCF(FCFConfig(local_epochs=2), MODEL), {ITEM: items_of()}
    once = fcf.client_update(shared, private_of(fcf), [samples(1, 4)], RNG)
    other = {USER: torch.full((4,), 9.0).double()}
    twice = fcf.client_update(shared, other, [samples(4, 1, 4), samples(1)], RNG)
    assert torch.equal(once.private[USER], twice.private[USER])
    assert torch.equal(once.update.tensors[ITEM], twice.update.tensors[ITEM])


def test_users_who_never_trained_score_with_their_solution() -> None:
    fcf, shared = FCF(FCFConfig(), MODEL), {ITEM: items_of()}
    trained = fcf.client_update(shared, private_of(fcf), [samples(1, 4)], RNG).private
    fresh = {USER: torch.zeros(2, 4).double()}
    history = History(np.array([1, 4]), np.array([2, 0]))
    scores_UI = fcf.scores_all(shared, fresh, history)
    torch.testing.assert_close(scores_UI[0], shared[ITEM] @ trained[USER], rtol=EXACT, atol=EXACT)
    assert not scores_UI[1].any()  # nothing is known of the second
    scores_UC = fcf.score_candidates(shared, fresh, np.array([[7, 0], [1, 2]]), history)
    torch.testing.assert_close(scores_UC[0], scores_UI[0, [7, 0]], rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": -1.0}, r"alpha must not be negative, got -1\.0"),
        ({"item_reg": -1.0}, r"item_reg must not be negative, got -1\.0"),
        ({"user_reg": 0.0}, r"user_reg must be positive, got 0\.0"),
        ({"server_lr": 0.0}, r"server_lr must be positive, got 0\.0"),
    ],
)
def test_bad_settings(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FCFConfig(**changes)  # type: ignore[arg-type]


def test_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="fcf needs model=mf"):
        FCF(FCFConfig(), LinearScoring())  # type: ignore[arg-type]
