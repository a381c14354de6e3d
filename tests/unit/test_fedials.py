"""fedials against hand-derived numbers, the gradient of its cost, and sums of latest vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.als import ImplicitCost
from models.als_items import ITEMS_AT_ONCE, Coordinates, Totals, solve_items, sum_by_item
from models.linear import LinearScoring
from models.mf import ITEM, USER, MatrixFactorisation
from models.types import History, Samples, Tensors, Update
from strategies import wire
from strategies.codec import INDEX, VALUES
from strategies.fedials import (
    COUNTED,
    GRAM,
    ITEM_SUMS,
    ROUND,
    UPLOADED,
    USERS,
    FedIALS,
    FedIALSConfig,
)
from strategies.messages import Uplink

NUM_ITEMS, FACTORS = 13, 6
RNG = np.random.default_rng(0)
# Float64 systems of at most 6 unknowns with condition numbers of some hundred.
EXACT = 1e-10


def samples(*positives: int) -> Samples:
    """Each positive with a negative, which the method does not use."""
    items_S = np.array([item for p in positives for item in (p, (p + 1) % NUM_ITEMS)])
    return Samples(items_S, np.tile(np.array([1, 0], dtype=np.float32), len(positives)))


def made(config: FedIALSConfig, factors: int = FACTORS) -> FedIALS:
    return FedIALS(config, MatrixFactorisation(factors, 0.5))


def shared_of(strategy: FedIALS) -> Tensors:
    drawn = strategy.init_shared(NUM_ITEMS, np.random.default_rng(0))
    return {n: t.double() for n, t in drawn.items()}


def private_of(strategy: FedIALS) -> Tensors:
    return {n: t.double() for n, t in strategy.init_private(NUM_ITEMS, RNG).items()}


def users_of(count: int, seed: int = 1) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((count, FACTORS)))


def two_items(first: float = 1.0, round_: float = 0.0) -> Tensors:
    items_ID = torch.tensor([[first], [2.0]]).double()
    return {ITEM: items_ID, ROUND: torch.tensor(round_).double()}


ONE = FedIALSConfig(alpha=1.0, user_reg=1.0, item_reg=0.5)


def test_a_user_by_hand() -> None:
    """D = 1, q = (1, 2), the first item is the user's, α = λ = 1: p = 2 / (1 + 4 + 1 + 1) = 2/7.

    Cost 2 (5/7)² + (4/7)² + (2/7)² = 10/7. With q = (2, 2) it is 4 / (4 + 4 + 4 + 1) = 4/13, and
    only what that is beyond 2/7 goes up: 4/13 - 2/7 = 2/91, 16/169 - 4/49 = 108/8281.
    """
    strategy = made(ONE, 1)
    first = strategy.client_update(two_items(), private_of(strategy), [samples(0)], RNG)
    assert first.private[USER].tolist() == pytest.approx([2 / 7])
    assert first.update.tensors[ITEM_SUMS].flatten().tolist() == pytest.approx(
        [2 / 7, 4 / 49, 0, 0]
    )
    assert first.update.tensors[GRAM].tolist() == pytest.approx([4 / 49])
    assert first.update.tensors[USERS].item() == 1
    assert first.metrics == pytest.approx({"loss": 10 / 7, "num_samples": 2})
    second = strategy.client_update(two_items(2.0, 1.0), first.private, [samples(0)], RNG)
    moved = [2 / 91, 108 / 8281]
    assert second.update.tensors[ITEM_SUMS].flatten().tolist() == pytest.approx([*moved, 0, 0])
    assert second.update.tensors[GRAM].tolist() == pytest.approx(moved[1:])
    assert second.update.tensors[USERS].item() == 0


def test_decaying_statistics_get_all_of_it_every_time() -> None:
    strategy = made(FedIALSConfig(alpha=1.0, statistics="decaying"), 1)
    private = private_of(strategy)
    assert set(private) == {USER}
    first = strategy.client_update(two_items(), private, [samples(0)], RNG)
    second = strategy.client_update(two_items(), first.private, [samples(0)], RNG)
    for name, tensor in first.update.tensors.items():
        assert torch.equal(second.update.tensors[name], tensor)


@pytest.mark.parametrize(("statistics", "before"), [("latest", 1.0), ("decaying", 0.5)])
def test_the_server_by_hand(statistics: str, before: float) -> None:
    """α = 1; G = 4w + 3, t = (w + 1, 1), S = (w + 1, 2), users 2w + 2, λ half of that.

    w = 1: q = (2 · 2 / (7 + 2 + 2), 2 · 1 / (7 + 2 + 2)), w = 1/2: 3 / (5 + 1.5 + 1.5), 2 / 8.5.
    """
    changes = {"statistics": statistics, "decay": 0.5}
    strategy = made(FedIALSConfig(alpha=1.0, item_reg=0.5, **changes), 1)  # type: ignore[arg-type]
    state = {
        ITEM_SUMS: torch.tensor([[[1.0, 1.0], [0.0, 0.0]]]).double(),
        GRAM: torch.tensor([[4.0]]).double(),
        USERS: torch.tensor([2.0]).double(),
    }
    sums = {
        ITEM_SUMS: torch.tensor([[1.0, 1.0], [1.0, 2.0]]).double(),
        GRAM: torch.tensor([3.0]).double(),
        USERS: torch.tensor(2.0).double(),
    }
    shared, state = strategy.server_update(two_items(), Update(sums, 4.0), state)
    expected = {1.0: [4 / 11, 2 / 11], 0.5: [3 / 8, 2 / 8.5]}[before]
    assert shared[ITEM].flatten().tolist() == pytest.approx(expected)
    assert shared[ROUND].item() == 1
    assert state[GRAM].tolist() == [[4 * before + 3]]
    assert state[USERS].tolist() == [2 * before + 2]


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_rows_survive_packing(size: int) -> None:
    users_UD = users_of(4)
    outer_UDD = users_UD[:, :, None] * users_UD[:, None, :]
    for first in range(0, FACTORS, size):
        block = Coordinates(FACTORS, size, first)
        packed_UP = block.packed(users_UD)
        assert packed_UP.shape == (4, block.num_products)
        assert torch.equal(block.unpacked(packed_UP), outer_UDD[:, block.inside])
    # All coordinates are a triangle; one alone is a row.
    assert Coordinates(FACTORS, FACTORS).num_products == FACTORS * (FACTORS + 1) // 2
    assert Coordinates(FACTORS, 1).num_products == FACTORS


def cost_of(items_ID: Tensor, users_UD: Tensor, once_UI: Tensor, cost: ImplicitCost) -> Tensor:
    """Over all pairs, in the words of the paper; λ is ``reg`` a user."""
    weights_UI = 1 + cost.alpha * once_UI
    errors = (weights_UI * (once_UI - users_UD @ items_ID.T) ** 2).sum()
    return errors + cost.reg * len(users_UD) * (items_ID**2).sum()


def totals_of(users_UD: Tensor, once_UI: Tensor, block: Coordinates) -> Totals:
    packed_UP = block.packed(users_UD)
    values_UX = torch.cat((users_UD[:, block.inside], packed_UP), 1)
    users = torch.tensor(float(len(users_UD))).double()
    return Totals(packed_UP.sum(0), once_UI.T @ values_UX, users)


@given(st.integers(0, 99), st.floats(0, 20), st.floats(0.05, 5), st.sampled_from([1, 2, 3, 6]))
@settings(deadline=None, max_examples=40)
def test_items_are_at_the_minimum_in_the_blocks_coordinates(
    seed: int, alpha: float, reg: float, size: int
) -> None:
    rng, cost = np.random.default_rng(seed), ImplicitCost(alpha, reg)
    once_UI = torch.from_numpy((rng.random((9, NUM_ITEMS)) < 0.3).astype(np.float64))
    users_UD, items_ID = users_of(9, seed), torch.from_numpy(rng.standard_normal((NUM_ITEMS, 6)))
    block = Coordinates(6, size, 6 - size)
    moved_ID = solve_items(items_ID, totals_of(users_UD, once_UI, block), block, cost)
    assert torch.equal(moved_ID[:, : 6 - size], items_ID[:, : 6 - size])
    at_ID = moved_ID.clone().requires_grad_()
    (slope_ID,) = torch.autograd.grad(cost_of(at_ID, users_UD, once_UI, cost), at_ID)
    # A sum of terms of up to (1 + 20) · 100, of which the solver keeps 1e-13.
    slope_IB = slope_ID[:, block.inside]
    torch.testing.assert_close(slope_IB, torch.zeros_like(slope_IB), rtol=0, atol=1e-8)


def test_items_in_parts_are_those_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    once_UI, block = (
        (users_of(9) @ torch.ones(6, NUM_ITEMS).double() > 0).double(),
        Coordinates(6, 2),
    )
    sums, cost = totals_of(users_of(9), once_UI, block), ImplicitCost(1.0, 0.1)
    items_ID = users_of(NUM_ITEMS, 3)
    whole_ID = solve_items(items_ID, sums, block, cost)
    assert NUM_ITEMS < ITEMS_AT_ONCE
    monkeypatch.setattr("models.als_items.ITEMS_AT_ONCE", 5)
    torch.testing.assert_close(
        solve_items(items_ID, sums, block, cost), whole_ID, rtol=0, atol=EXACT
    )


def test_an_indefinite_system_gets_a_greater_penalty() -> None:
    """G = -1 and λ = 1/4: 1/4 more, then 1/2 and 1 more, makes 1; q = 1."""
    sums = Totals(torch.tensor([-1.0]), torch.tensor([[1.0]]), torch.tensor(1.0))
    moved_ID = solve_items(torch.zeros(1, 1), sums, Coordinates(1, 1), ImplicitCost(0.0, 0.25))
    assert moved_ID.item() == pytest.approx(1.0)


def test_sums_that_are_not_finite_are_refused() -> None:
    sums = Totals(torch.tensor([float("nan")]), torch.tensor([[1.0]]), torch.tensor(1.0))
    with pytest.raises(ValueError, match="not finite"):
        solve_items(torch.zeros(1, 1), sums, Coordinates(1, 1), ImplicitCost(0.0, 0.25))


@pytest.mark.parametrize("num_items", [5, 40])
def test_sums_by_item(num_items: int) -> None:
    """Users with items 1 and 3, none, and 3; sparse where the catalogue is large."""
    history = History(np.array([1, 3, 3]), np.array([2, 0, 1]))
    values_UX = torch.tensor([[1.0, 2.0], [8.0, 8.0], [10.0, 20.0]]).double()
    table = sum_by_item(values_UX, history, num_items)
    assert table.is_sparse == (num_items == 40)
    expected = torch.zeros(num_items, 2).double()
    expected[1], expected[3] = values_UX[0], values_UX[0] + values_UX[2]
    assert torch.equal(table.to_dense(), expected)


cohorts = st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=1, max_size=6)


@given(cohorts, st.sampled_from([None, 2, 3]), st.sampled_from([0.0, 2.0]))
@settings(deadline=None, max_examples=25)
def test_totals_are_sums_over_the_latest_vectors_of_all_users_so_far(
    rounds: list[set[int]], size: int | None, alpha: float
) -> None:
    strategy = made(FedIALSConfig(alpha=alpha, block_size=size))
    shared = shared_of(strategy)
    state, own = strategy.init_server_state(shared), [private_of(strategy) for _ in range(5)]
    for cohort in rounds:
        updates = []
        for user in sorted(cohort):
            result = strategy.client_update(shared, own[user], [samples(user, user + 5)], RNG)
            own[user] = result.private
            updates.append(result.update)
        shared, state = strategy.server_update(shared, strategy.combined(updates, shared), state)
    once_UI = torch.zeros(5, NUM_ITEMS).double()
    for user in range(5):
        once_UI[user, [user, user + 5]] = 1
    width = FACTORS if size is None else size
    for turn in range(FACTORS // width):
        block = Coordinates(FACTORS, width, turn * width)
        latest_UD = torch.stack([private[UPLOADED][turn] for private in own])
        expected = totals_of(latest_UD, once_UI, block)
        items_IX = expected.items_IX[:, : None if alpha else width]
        torch.testing.assert_close(state[GRAM][turn], expected.gram_P, rtol=0, atol=EXACT)
        torch.testing.assert_close(state[ITEM_SUMS][turn], items_IX, rtol=0, atol=EXACT)
        seen = [private[COUNTED][turn].item() for private in own]
        assert (
            state[USERS][turn].item()
            == sum(seen)
            == len(set().union(*rounds[turn :: FACTORS // width]))
        )


def test_a_block_of_all_coordinates_is_the_exact_solver() -> None:
    whole, block = (
        made(FedIALSConfig(alpha=1.0)),
        made(FedIALSConfig(alpha=1.0, block_size=FACTORS)),
    )
    outcomes = []
    for strategy in (whole, block):
        shared = shared_of(strategy)
        result = strategy.client_update(shared, private_of(strategy), [samples(1, 4)], RNG)
        state = strategy.init_server_state(shared)
        outcomes.append(strategy.server_update(shared, result.update, state)[0][ITEM])
    assert torch.equal(*outcomes)


def test_blocks_take_turns() -> None:
    strategy = made(FedIALSConfig(block_size=2))
    shared = shared_of(strategy)
    state, private, moved = (
        strategy.init_server_state(shared),
        private_of(strategy),
        list[list[int]](),
    )
    for _ in range(4):
        result = strategy.client_update(shared, private, [samples(1, 4)], RNG)
        after, state = strategy.server_update(shared, result.update, state)
        moved.append((after[ITEM] != shared[ITEM]).any(0).nonzero().flatten().tolist())
        shared, private = after, result.private
    assert moved == [[0, 1], [2, 3], [4, 5], [0, 1]]


@pytest.mark.parametrize(("alpha", "width"), [(0.0, 6), (1.0, 6 + 21)])
def test_one_users_message_has_rows_of_its_items_alone(alpha: float, width: int) -> None:
    """Without α an item's row is p, else p and a triangle."""
    strategy = made(FedIALSConfig(alpha=alpha))
    shared = strategy.init_shared(NUM_ITEMS, RNG)
    private = strategy.init_private(NUM_ITEMS, RNG)
    update = strategy.client_update(shared, private, [samples(1, 4)], RNG).update
    uplink = Uplink("node", 1, 1, update, {}, 0.1)
    message = wire.encode_uplink(uplink, strategy.row_tables)
    arrays = message.array_records[wire.ARRAYS]
    assert arrays[ITEM_SUMS + INDEX].numpy().tolist() == [1, 4]
    assert arrays[ITEM_SUMS + VALUES].numpy().shape == (2, width)
    back = wire.decode_uplink(message, strategy.summed_template(shared)).update.tensors
    assert all(torch.equal(back[n], t) for n, t in update.tensors.items())


def test_users_who_come_later_change_nothing() -> None:
    strategy = made(FedIALSConfig())
    shared, private = shared_of(strategy), private_of(strategy)
    assert strategy.adapt(shared, private, [samples(1)], RNG) is private
    trained = strategy.client_update(shared, private, [samples(1, 4)], RNG).private
    scores_UI = strategy.scores_all(shared, {}, History(np.array([1, 4]), np.array([2, 0])))
    torch.testing.assert_close(scores_UI[0], shared[ITEM] @ trained[USER], rtol=0, atol=EXACT)
    assert not scores_UI[1].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": -1.0}, r"alpha must not be negative, got -1\.0"),
        ({"item_reg": 0.0}, r"item_reg must be positive, got 0\.0"),
        ({"user_reg": 0.0}, r"user_reg must be positive, got 0\.0"),
        ({"statistics": "mean"}, "statistics must be one of latest, decaying, got 'mean'"),
        ({"decay": 1.0}, r"decay must be in \[0, 1\), got 1\.0"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
    ],
)
def test_bad_settings(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedIALSConfig(**changes)  # type: ignore[arg-type]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="fedials needs model=mf"):
        FedIALS(FedIALSConfig(), LinearScoring())
    with pytest.raises(ValueError, match=r"block_size must divide model\.factors, got 4 and 6"):
        made(FedIALSConfig(block_size=4))
