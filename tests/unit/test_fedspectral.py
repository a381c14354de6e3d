"""fedspectral against hand-derived numbers, and the algebra that it rests on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.linear import LinearScoring
from models.mf import ITEM, USER, MatrixFactorisation
from models.spectral import filtered, next_basis, orthonormal, rayleigh, singular_values
from models.types import History, Samples, Tensors, Update
from strategies.fedspectral import (
    COUNTED,
    COUNTS,
    MOVED,
    NEW_ITEMS,
    NEW_USERS,
    RAYLEIGH,
    ROWS,
    SEEN,
    SHARE,
    FedSpectral,
    FedSpectralConfig,
)

RNG = np.random.default_rng(0)
HALVES = FedSpectralConfig(item_exponent=0.5, score_exponent=0.5)
# Float64 and tables of some ten rows: 1e-15, and up to 1e3 of that where a shift of 1e-3 keeps
# a direction.
EXACT = 1e-10


def samples(*positives: int) -> Samples:
    """Each positive with a negative, which the method does not use."""
    items_S = np.array([item for p in positives for item in (p, p + 1)], dtype=np.int64)
    return Samples(items_S, np.tile(np.array([1, 0], dtype=np.float32), len(positives)))


def two_items(first: float = 0.6, second: float = 0.8) -> Tensors:
    """One column, and a first item that a quarter of the users have."""
    return {
        ITEM: torch.tensor([[first], [second]]).double(),
        SHARE: torch.tensor([0.25, 1.0]).double(),
        RAYLEIGH: torch.tensor([[0.25]]).double(),
    }


def one_factor(config: FedSpectralConfig = HALVES) -> FedSpectral:
    return FedSpectral(config, MatrixFactorisation(factors=1))


def fresh(strategy: FedSpectral) -> Tensors:
    return {n: t.double() for n, t in strategy.init_private(2, RNG).items()}


def test_a_user_by_hand() -> None:
    """a = b = 1/2, first item only: x̃ = 0.25^-½ = 2 there, p = 2 · 0.6 = 1.2.

    Outside the span: 1 - 1.2² / 2² = 0.64. The second time the basis is (1, 0): p = 2, which is
    0.8 more, and the items are known.
    """
    made = one_factor()
    first = made.client_update(two_items(), fresh(made), [samples(0)], RNG)
    assert first.private[USER].tolist() == pytest.approx([1.2])
    assert first.update.tensors[MOVED].flatten().tolist() == pytest.approx([1.2, 0])
    assert first.update.tensors[NEW_ITEMS].tolist() == [1, 0]
    assert first.update.tensors[NEW_USERS].item() == 1
    assert first.metrics == pytest.approx({"loss": 0.64, "num_samples": 2})
    second = made.client_update(two_items(1.0, 0.0), first.private, [samples(0)], RNG)
    assert second.private[USER].tolist() == pytest.approx([2.0])
    assert second.update.tensors[MOVED].flatten().tolist() == pytest.approx([0.8, 0])
    assert not second.update.tensors[NEW_ITEMS].any()
    assert second.update.tensors[NEW_USERS].item() == 0
    assert second.metrics["loss"] == pytest.approx(0)


def test_a_user_of_two_items_by_hand() -> None:
    """x̃ = 2^-½ (2, 1), p = 2^-½ (1.2 + 0.8) = √2, rows of n^-½ p = 1."""
    made = one_factor()
    result = made.client_update(two_items(), fresh(made), [samples(0), samples(1, 0)], RNG)
    assert result.private[USER].tolist() == pytest.approx([2**0.5])
    assert result.update.tensors[MOVED].flatten().tolist() == pytest.approx([1, 1])


def test_the_server_by_hand() -> None:
    """Rows (0.5, 1) + (1, 3), 1 + 0 and 2 + 2 of 4 users: shares (1/4, 1), X̃ᵀX̃V = (3, 4).

    It is along V = (0.6, 0.8), which therefore stays; VᵀX̃ᵀX̃V = 5 in shares, 5 / 4 in counts.
    """
    made = one_factor()
    state = {
        ROWS: torch.tensor([[0.5], [1.0]]).double(),
        COUNTS: torch.tensor([1.0, 2.0]).double(),
        SEEN: torch.tensor(2.0).double(),
    }
    sums = {
        MOVED: torch.tensor([[1.0], [3.0]]).double(),
        NEW_ITEMS: torch.tensor([0.0, 2.0]).double(),
        NEW_USERS: torch.tensor(2.0).double(),
    }
    shared, state = made.server_update(two_items(0.6, 0.8), Update(sums, 3.0), state)
    assert shared[ITEM].flatten().tolist() == pytest.approx([0.6, 0.8])
    assert shared[SHARE].tolist() == pytest.approx([0.25, 1])
    assert shared[RAYLEIGH].item() == pytest.approx(1.25)
    assert state[ROWS].flatten().tolist() == pytest.approx([1.5, 4])
    assert state[COUNTS].tolist() == [1, 4]
    assert state[SEEN].item() == 4


@pytest.mark.parametrize(
    ("changes", "weight"),
    [
        ({}, 1.0),
        ({"spectral_filter": "ridge", "ridge": 0.75}, 0.25),
        ({"spectral_filter": "power", "power": 3.0}, 0.125),
    ],
)
def test_scores_by_hand(changes: dict[str, object], weight: float) -> None:
    """p = 1.2 as above, σ² = 1/4: scores 1.2 f (0.6 · ½, 0.8); shares without a history."""
    config = FedSpectralConfig(item_exponent=0.5, score_exponent=0.5, **changes)  # type: ignore[arg-type]
    made = one_factor(config)
    history, block = History(np.array([0]), np.array([1, 0])), {USER: torch.zeros(2, 1).double()}
    scores_UI = made.scores_all(two_items(), block, history)
    assert scores_UI[0].tolist() == pytest.approx([0.36 * weight, 0.96 * weight])
    assert scores_UI[1].tolist() == pytest.approx([0.25, 1])
    items_UC = np.array([[1, 0, 1], [1, 1, 0]])
    scores_UC = made.score_candidates(two_items(), block, items_UC, history)
    expected_UC = scores_UI.gather(1, torch.from_numpy(items_UC))
    torch.testing.assert_close(scores_UC, expected_UC, rtol=EXACT, atol=EXACT)


def test_a_user_without_items_uploads_nothing_but_itself() -> None:
    made = one_factor()
    result = made.client_update(two_items(), fresh(made), [samples()], RNG)
    assert not result.update.tensors[MOVED].any()
    assert result.update.tensors[NEW_USERS].item() == 1
    assert result.metrics["loss"] == 0
    state = made.init_server_state(two_items())
    shared, _ = made.server_update(two_items(), result.update, state)
    assert torch.equal(shared[ITEM], two_items()[ITEM])  # of nothing there is no direction


def test_the_total_is_that_of_each_users_last_projection() -> None:
    """However often users took part, and with what: the movements telescope."""
    made, rng = FedSpectral(FedSpectralConfig(), MatrixFactorisation(factors=3)), RNG
    shared = {n: t.double() for n, t in made.init_shared(9, rng).items()}
    own = [(0, 3), (1, 3, 8), (4,)]
    rows = [{n: t.double() for n, t in made.init_private(9, rng).items()} for _ in own]
    state = made.init_server_state(shared)
    for user in (0, 1, 0, 2, 0, 1):
        result = made.client_update(shared, rows[user], [samples(*own[user])], rng)
        rows[user] = result.private
        shared, state = made.server_update(shared, result.update, state)
    expected_ID = torch.zeros(9, 3).double()
    for items, row in zip(own, rows, strict=True):
        expected_ID[list(items)] += len(items) ** -0.5 * row[USER]
    torch.testing.assert_close(state[ROWS], expected_ID, rtol=EXACT, atol=EXACT)
    assert state[COUNTS].tolist() == [1, 1, 0, 2, 1, 0, 0, 0, 1]
    assert state[SEEN].item() == 3


def test_it_starts_from_the_span_of_items_that_are_given() -> None:
    """Orthonormal: of (3, 4) it is (0.6, 0.8)."""
    made = one_factor()
    made.initial_items = {ITEM: torch.tensor([[3.0], [4.0]])}
    shared = made.init_shared(2, RNG)
    assert shared[ITEM].flatten().tolist() == pytest.approx([0.6, 0.8])
    assert shared[ITEM].dtype == torch.float32


def test_adapting_leaves_everything_as_it_was() -> None:
    """What a cold start keeps must not look as if it had been uploaded."""
    made = one_factor()
    kept = made.adapt(two_items(), fresh(made), [samples(0)], RNG)
    assert kept[COUNTED].item() == 0
    assert not kept[USER].any()


# ---- algebra -------------------------------------------------------------------------------
def table(seed: int, rows: int, columns: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, columns)))


@given(st.integers(0, 99), st.integers(1, 5), st.integers(0, 5))
@settings(deadline=None, max_examples=40)
def test_the_basis_is_orthonormal_spans_the_step_and_turns_with_it(
    seed: int, columns: int, rank: int
) -> None:
    before_ID = orthonormal(table(seed, 12, columns))
    rank = min(rank, columns)
    step_ID = table(seed + 1, 12, rank) @ table(seed + 2, rank, columns)
    basis_ID = next_basis(step_ID, before_ID)
    identity_DD = torch.eye(columns).double()
    torch.testing.assert_close(basis_ID.T @ basis_ID, identity_DD, rtol=0, atol=EXACT)
    shifted_ID = step_ID + 1e-3 * step_ID.norm() * before_ID
    outside_ID = shifted_ID - basis_ID @ (basis_ID.T @ shifted_ID)
    assert float(outside_ID.norm()) <= EXACT * float(1 + shifted_ID.norm())
    turn_DD = orthonormal(table(seed + 3, columns, columns))
    turned_ID = next_basis(step_ID @ turn_DD, before_ID @ turn_DD)
    torch.testing.assert_close(turned_ID, basis_ID @ turn_DD, rtol=0, atol=1e-8)


@given(st.integers(0, 99), st.integers(1, 4))
@settings(deadline=None, max_examples=20)
def test_a_singular_subspace_stays_and_its_values_are_found(seed: int, columns: int) -> None:
    """At the fixed point the basis itself stays, whatever its rotation within the subspace."""
    matrix_UI = table(seed, 15, 9)
    _, values_I, right_II = torch.linalg.svd(matrix_UI, full_matrices=False)
    turn_DD = orthonormal(table(seed + 1, columns, columns))
    basis_ID = right_II[:columns].T @ turn_DD
    step_ID = matrix_UI.T @ (matrix_UI @ basis_ID)
    torch.testing.assert_close(next_basis(step_ID, basis_ID), basis_ID, rtol=0, atol=EXACT)
    found_D = singular_values(rayleigh(step_ID, basis_ID))
    torch.testing.assert_close(found_D, values_I[:columns], rtol=EXACT, atol=EXACT)


@given(st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_a_filter_does_not_hang_on_the_basis(seed: int) -> None:
    """Equal singular values included, whose vectors a library chooses as it likes."""
    basis_ID, user_1I = orthonormal(table(seed, 8, 3)), table(seed + 1, 1, 8)
    squares_DD = torch.diag(torch.tensor([4.0, 1.0, 1.0]).double())
    turn_DD = orthonormal(table(seed + 2, 3, 3))
    scores = []
    for turn in (torch.eye(3).double(), turn_DD):
        turned_ID = basis_ID @ turn
        users_1D = filtered(user_1I @ turned_ID, turn.T @ squares_DD @ turn, lambda s: s**2 / 4)
        scores.append(users_1D @ turned_ID.T)
    by_hand = user_1I @ basis_ID @ torch.diag(torch.tensor([1, 0.25, 0.25]).double()) @ basis_ID.T
    for found in scores:
        torch.testing.assert_close(found, by_hand, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"user_exponent": -1.0}, r"user_exponent must not be negative, got -1\.0"),
        ({"item_exponent": -1.0}, r"item_exponent must not be negative, got -1\.0"),
        ({"score_exponent": -1.0}, r"score_exponent must not be negative, got -1\.0"),
        ({"power": -1.0}, r"power must not be negative, got -1\.0"),
        ({"ridge": 0.0}, r"ridge must be positive, got 0\.0"),
        ({"spectral_filter": "sinc"}, "spectral_filter must be one of none, ridge, power"),
    ],
)
def test_bad_settings(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedSpectralConfig(**changes)  # type: ignore[arg-type]


def test_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="fedspectral needs model=mf"):
        FedSpectral(FedSpectralConfig(), LinearScoring())  # type: ignore[arg-type]
