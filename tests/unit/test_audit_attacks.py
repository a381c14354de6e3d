"""Attacks on uploads made by hand, and how guesses are judged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.audit.attacks import ATTACKS, consensus_line
from experiments.audit.scores import auc, score
from experiments.audit.upload import Facts, Guess, NotApplicableError, Upload

ITEMS, WIDTH = 60, 8
POSITIVE = np.arange(0, 10)
NEGATIVE = np.arange(10, 50)
FACTS = Facts(num_items=ITEMS, negatives=4, items_per_user=10.0)


def truth() -> np.ndarray:
    true_I = np.zeros(ITEMS, dtype=bool)
    true_I[POSITIVE] = True
    return true_I


def gradient(seed: int = 0, positives: np.ndarray = POSITIVE) -> torch.Tensor:
    """Rows (σ - y) · p of one user: ten items with y = 1, forty without, the rest untouched."""
    rng = np.random.default_rng(seed)
    table_IX, p_X = np.zeros((ITEMS, WIDTH)), rng.normal(size=WIDTH)
    table_IX[NEGATIVE] = rng.uniform(0.1, 0.9, (len(NEGATIVE), 1)) * p_X
    table_IX[positives] = -rng.uniform(0.1, 0.9, (len(positives), 1)) * p_X
    return torch.from_numpy(table_IX)


def upload(table_IX: torch.Tensor, num_users: int = 1) -> Upload:
    return Upload({"item_emb": table_IX}, num_users, 1, {"item_emb": torch.zeros(ITEMS, WIDTH)})


@pytest.mark.parametrize("name", ["direction", "consensus"])
@pytest.mark.parametrize("flipped", [1.0, -1.0])
def test_the_side_of_the_line_is_the_label(name: str, flipped: float) -> None:
    guess = ATTACKS[name](upload(flipped * gradient()), FACTS)
    assert (guess.named_I == truth()).all()
    found = score(guess, truth())
    assert (found.f1, found.auc) == (1.0, 1.0)
    # 10 true items among 50 touched rows: ten drawn of them hit two on average.
    assert found.chance == pytest.approx(0.2, rel=1e-12)
    # Ten named of sixty hit 10 · 10 / 60 on average.
    assert found.chance_named == pytest.approx(1 / 6, rel=1e-12)


def test_presence_names_what_was_touched() -> None:
    guess = ATTACKS["presence"](upload(gradient()), FACTS)
    assert np.flatnonzero(guess.named_I).tolist() == list(range(50))
    found = score(guess, truth())
    # 10 hits, 50 named, 10 true: 2 · 10 / 60.
    assert found.f1 == pytest.approx(1 / 3, rel=1e-12)
    assert (found.precision, found.recall) == (0.2, 1.0)
    assert found.chance == pytest.approx(1 / 6, rel=1e-12)


def test_pseudo_rows_are_told_from_a_users_own() -> None:
    """Gaussian rows at ten items more: off the line, so that consensus drops them."""
    table_IX = gradient()
    noise = np.random.default_rng(1).normal(size=(10, WIDTH))
    table_IX[50:] = torch.from_numpy(noise)
    stripped = score(ATTACKS["consensus"](upload(table_IX), FACTS), truth())
    plain = score(ATTACKS["direction"](upload(table_IX), FACTS), truth())
    assert stripped.f1 == 1.0
    assert plain.f1 < 1.0


def test_the_line_of_the_many_is_found() -> None:
    rows_IX = np.array([[1.0, 0.0], [-2.0, 0.0], [3.0, 0.0], [0.0, 5.0], [0.0, 0.0]])
    line_X, on_I = consensus_line(rows_IX)
    assert np.abs(line_X).tolist() == [1.0, 0.0]
    assert on_I.tolist() == [True, True, True, False, False]


def test_magnitude_names_the_longest_rows_as_many_as_are_expected() -> None:
    table_IX = gradient()
    table_IX[POSITIVE] *= 100
    guess = ATTACKS["magnitude"](upload(table_IX), FACTS)
    # 50 touched rows, one positive for every four negatives.
    assert (guess.named_I == truth()).all()


def test_residual_finds_the_items_of_a_least_squares_user() -> None:
    """Rows c(p·q - r) p with c = 5, r = 1 at the user's items and c = 1, r = 0 elsewhere."""
    rng = np.random.default_rng(3)
    items_IX, p_X = rng.normal(size=(ITEMS, WIDTH)), rng.normal(size=WIDTH)
    r_I = truth().astype(float)
    rows_IX = ((1 + 4 * r_I) * (r_I - items_IX @ p_X))[:, None] * p_X
    dense = Facts(ITEMS, 4, dense=True, closed_form=True, items_per_user=10.0)
    seen = Upload({"q": torch.from_numpy(rows_IX)}, 1, 1, {"q": torch.from_numpy(items_IX)})
    found = score(ATTACKS["residual"](seen, dense), truth())
    assert found.auc > 0.95
    with pytest.raises(NotApplicableError, match="residuals"):
        ATTACKS["residual"](seen, FACTS)


@pytest.mark.parametrize("name", ["direction", "consensus"])
def test_there_is_no_side_where_only_own_items_have_rows(name: str) -> None:
    own = Facts(num_items=ITEMS, negatives=4, closed_form=True, items_per_user=10.0)
    with pytest.raises(NotApplicableError, match="which presence names"):
        ATTACKS[name](upload(gradient()), own)


@pytest.mark.parametrize("name", list(ATTACKS))
def test_an_upload_without_rows_of_items_cannot_be_attacked(name: str) -> None:
    seen = Upload({"bias": torch.ones(3)}, 1, 1, {"bias": torch.ones(3)})
    with pytest.raises(NotApplicableError):
        ATTACKS[name](seen, FACTS)


@pytest.mark.parametrize("name", ["presence", "magnitude", "direction", "consensus"])
def test_an_upload_of_zeros_names_nothing(name: str) -> None:
    guess = ATTACKS[name](upload(torch.zeros(ITEMS, WIDTH)), FACTS)
    assert not guess.named_I.any()
    found = score(guess, truth())
    assert (found.f1, found.precision, found.recall, found.auc) == (0.0, 0.0, 0.0, 0.5)


# ---- scores -------------------------------------------------------------------------------
def test_ties_count_a_half() -> None:
    # Pairs of the true item (2) with 1, 2 and 3: won, tied, lost.
    scores, true_I = np.array([1.0, 2.0, 2.0, 3.0]), np.array([False, True, False, False])
    assert auc(scores, true_I) == 0.5
    assert auc(np.array([0.0, 9.0, 1.0, 2.0]), true_I) == 1.0
    assert auc(np.array([3.0, 0.0, 1.0, 2.0]), true_I) == 0.0


def test_chance_is_the_mean_of_random_guesses() -> None:
    """Against 4000 draws: the mean of T = 10 of 50 candidates, within four standard errors."""
    rng, true_I = np.random.default_rng(0), truth()
    considered_I = np.arange(ITEMS) < 50
    expected = score(Guess(np.zeros(ITEMS), true_I, considered_I), true_I).chance
    f1s = []
    for _ in range(4000):
        named_I = np.zeros(ITEMS, dtype=bool)
        named_I[rng.choice(50, size=10, replace=False)] = True
        f1s.append(score(Guess(np.zeros(ITEMS), named_I), true_I).f1)
    assert abs(np.mean(f1s) - expected) < 4 * np.std(f1s) / np.sqrt(len(f1s))


def test_a_user_without_items_is_no_target() -> None:
    with pytest.raises(ValueError, match="no item to find"):
        score(Guess(np.zeros(3), np.zeros(3, bool)), np.zeros(3, bool))
