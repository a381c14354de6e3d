from __future__ import annotations

import numpy as np
import pytest

from experiments.user_values import belongs, spread_out, user_values
from models.types import UserRanks

RANKS = UserRanks(np.array([1, 4, 5, 6]), {"test/full": np.array([0, 9, 10, -1])})


def test_values_by_hand() -> None:
    """Ranks from 0: hits are 0 to 9; 1/log2(2) = 1 and 1/log2(11) = 0.28906."""
    hits, gains = user_values(RANKS, "test/full/hr@10"), user_values(RANKS, "test/full/ndcg@10")
    np.testing.assert_array_equal(hits, [1, 1, 0, np.nan])
    np.testing.assert_allclose(gains, [1, 0.28906, 0, np.nan], atol=5e-6)  # type: ignore[arg-type]
    assert user_values(RANKS, "test/sampled/hr@10") is None


def test_values_by_global_index() -> None:
    spread = spread_out(RANKS, "test/full/hr@10", 8)
    np.testing.assert_array_equal(spread, [np.nan, 1, np.nan, np.nan, 1, 0, np.nan, np.nan])


def test_ranks_belong_to_their_figures() -> None:
    assert belongs(RANKS, {"test/full/hr@10": 2 / 3, "test/sampled/hr@10": 0.1})
    assert not belongs(RANKS, {"test/full/hr@10": 1 / 3})


def test_other_metrics_are_refused() -> None:
    with pytest.raises(ValueError, match="coverage"):
        user_values(RANKS, "test/full/coverage@10")
