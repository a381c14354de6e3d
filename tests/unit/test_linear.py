"""Linear scoring: scores by hand and in agreement, and where the parameters start."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from models.linear import BIAS, ITEM, WEIGHT, LinearScoring, own_rows, score_rows
from models.types import Tensors

MODEL = LinearScoring(factors=2)


def private_block() -> Tensors:
    return {WEIGHT: torch.tensor([[1.0, 2.0], [0.0, -1.0]]), BIAS: torch.tensor([0.5, -3.0])}


SHARED = {ITEM: torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 3.0]])}


def test_scores_by_hand() -> None:
    """User 0: 1·1 + 0.5, 1·2 + 0.5, 2 + 6 + 0.5; user 1: -3, -1 - 3, -3 - 3."""
    expected = [[1.5, 2.5, 8.5], [-3.0, -4.0, -6.0]]
    assert MODEL.scores_all(SHARED, private_block()).tolist() == expected
    assert MODEL.scores(SHARED, private_block(), np.array([2])).tolist() == [[8.5], [-6.0]]
    items_UC = np.array([[2, 0], [1, 1]])
    found = MODEL.score_candidates(SHARED, private_block(), items_UC).tolist()
    assert found == [[8.5, 1.5], [-4.0, -4.0]]
    one = {n: t[0] for n, t in private_block().items()}
    assert MODEL.logits(SHARED, one, torch.tensor([1, 2])).tolist() == [2.5, 8.5]


def test_rows_of_own_tables() -> None:
    """User 0 has the shared table, user 1 its double: user 1 scores item 2 by -6 - 3."""
    tables_UID = torch.stack([SHARED[ITEM], 2 * SHARED[ITEM]])
    rows_UCD = own_rows(tables_UID, np.array([[2, 0], [2, 1]]))
    assert score_rows(rows_UCD, private_block()).tolist() == [[8.5, 1.5], [-9.0, -5.0]]


def test_initial_values() -> None:
    """Items N(0, std²); weight and bias uniform in ±1/√D, of variance 1/(3D)."""
    model = LinearScoring(factors=400, init_std=0.5)
    items = model.init_shared(100, np.random.default_rng(0))[ITEM]
    assert (items.shape, items.dtype) == ((100, 400), torch.float32)
    # 40000 normal draws: the sample deviation errs by 0.5/√80000 = 0.0018; four of them.
    assert float(items.std()) == pytest.approx(0.5, abs=0.0072)
    first, again = (model.init_private(100, np.random.default_rng(1)) for _ in range(2))
    assert all(torch.equal(first[n], again[n]) for n in (WEIGHT, BIAS))
    assert (first[WEIGHT].shape, first[BIAS].shape) == ((400,), ())
    assert {t.dtype for t in first.values()} == {torch.float32}
    assert float(first[WEIGHT].abs().max()) <= 1 / 20
    # Squares of 400 draws of variance b²/3 have a deviation of b²·√(4/45): their mean errs by
    # 0.0149·b², which is 4.5 % of b²/3; four of them.
    assert float(first[WEIGHT].square().mean()) == pytest.approx(1 / 1200, rel=0.18)


@pytest.mark.parametrize("init_std", [0.0, -1.0, math.inf, math.nan])
def test_init_std_is_checked(init_std: float) -> None:
    with pytest.raises(ValueError, match="init_std must be positive and finite"):
        LinearScoring(init_std=init_std)


def test_factors_are_checked() -> None:
    with pytest.raises(ValueError, match="factors must be at least 1, got 0"):
        LinearScoring(factors=0)
