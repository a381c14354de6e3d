"""Ranking metrics against hand-derived values and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from models.metrics import hit_rate, metric_sums, ndcg, ranks, reciprocal_rank


def test_rank_counts_ties_against_the_positive() -> None:
    positive_U = torch.tensor([2.0, 2.0, 2.0])
    candidates_UC = torch.tensor([[1.0, 0.0, -3.0], [2.0, 1.0, 5.0], [2.0, 2.0, 2.0]])
    assert ranks(positive_U, candidates_UC).tolist() == [1, 3, 4]


def test_uncounted_candidates_do_not_count() -> None:
    counted_UC = torch.tensor([[True, False, True]])
    candidates_UC = torch.tensor([[9.0, 9.0, 9.0]])
    assert ranks(torch.tensor([1.0]), candidates_UC, counted_UC).tolist() == [3]


def test_without_candidates_the_rank_is_one() -> None:
    assert ranks(torch.tensor([0.0]), torch.empty(1, 0)).tolist() == [1]


@pytest.mark.parametrize("where", ["positive", "candidate"])
def test_nan_is_an_error(where: str) -> None:
    positive_U, candidates_UC = torch.zeros(2), torch.zeros(2, 3)
    if where == "positive":
        positive_U[1] = math.nan
    else:
        candidates_UC[1, 2] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        ranks(positive_U, candidates_UC)


def test_infinite_scores_have_a_rank() -> None:
    positive_U = torch.tensor([-math.inf, math.inf])
    candidates_UC = torch.tensor([[-math.inf, 0.0], [0.0, math.inf]])
    assert ranks(positive_U, candidates_UC).tolist() == [3, 2]


def test_values_by_hand() -> None:
    """Ranks 1, 2, 3, 11 at K = 3: NDCG is 1, 1/log2(3) and 1/log2(4), then nothing."""
    ranks_U = torch.tensor([1, 2, 3, 11])
    assert hit_rate(ranks_U, 3).tolist() == [1, 1, 1, 0]
    assert ndcg(ranks_U, 3).tolist() == pytest.approx([1, 1 / math.log2(3), 0.5, 0])
    assert reciprocal_rank(ranks_U, 3).tolist() == pytest.approx([1, 1 / 2, 1 / 3, 0])


def test_sums_are_named_by_metric_and_cutoff() -> None:
    sums = metric_sums(torch.tensor([1, 4]), [3, 5])
    expected = {
        "hr@3": 1.0,
        "hr@5": 2.0,
        "ndcg@3": 1.0,
        "ndcg@5": 1 + 1 / math.log2(5),
        "mrr@3": 1.0,
        "mrr@5": 1.25,
    }
    assert sums == pytest.approx(expected)


def test_cutoff_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"cut-offs must be at least 1, got \(10, 0\)"):
        metric_sums(torch.tensor([1]), [10, 0])


@pytest.mark.parametrize("cutoff", [1, 5, 10, 100])
def test_ndcg_equals_scikit_learn(cutoff: int) -> None:
    """One relevant item among 100, scores without ties (scikit-learn averages over ties)."""
    rng = np.random.default_rng(3)
    scores = rng.permuted(np.tile(np.arange(100.0), (50, 1)), axis=1)
    truth = np.zeros_like(scores)
    truth[:, 0] = 1
    ranks_U = ranks(torch.from_numpy(scores[:, 0]), torch.from_numpy(scores[:, 1:]))
    expected = ndcg_score(truth, scores, k=cutoff)
    assert float(ndcg(ranks_U, cutoff).mean()) == pytest.approx(expected, rel=1e-12)
