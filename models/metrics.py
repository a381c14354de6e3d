"""Ranking metrics of one held-out item a user: rank, HR@K, NDCG@K, MRR@K.

The held-out item loses every tie, so a model that scores everything alike ranks it last.
With a single relevant item at rank r the ideal DCG is 1, hence NDCG@K = 1/log2(1 + r) for
r <= K and 0 beyond (Järvelin & Kekäläinen, 2002).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

Metric = Callable[[Tensor, int], Tensor]
"""Ranks (U,) and a cut-off to values (U,)."""


def ranks(positive_U: Tensor, candidates_UC: Tensor, counted_UC: Tensor | None = None) -> Tensor:
    """Rank (U,) int64, from 1, of each user's held-out item among its candidates.

    Args:
        positive_U: score of the held-out item.
        candidates_UC: scores of the candidates, the held-out item not among them.
        counted_UC: bool, False where a candidate does not count; None counts all.

    Raises:
        ValueError: when a score is NaN: it compares as neither above nor below.

    """
    if bool(positive_U.isnan().any()) or bool(candidates_UC.isnan().any()):
        raise ValueError("scores must not be NaN")
    above_UC = candidates_UC >= positive_U[:, None]
    if counted_UC is not None:
        above_UC &= counted_UC
    return 1 + above_UC.sum(1)


def hit_rate(ranks_U: Tensor, cutoff: int) -> Tensor:
    """1 where the held-out item is among the first ``cutoff``, else 0 (U,) float64."""
    return (ranks_U <= cutoff).double()


def ndcg(ranks_U: Tensor, cutoff: int) -> Tensor:
    """1/log2(1 + rank) within the first ``cutoff``, else 0 (U,) float64."""
    return hit_rate(ranks_U, cutoff) / torch.log2(1.0 + ranks_U.double())


def reciprocal_rank(ranks_U: Tensor, cutoff: int) -> Tensor:
    """1/rank within the first ``cutoff``, else 0 (U,) float64."""
    return hit_rate(ranks_U, cutoff) / ranks_U.double()


METRICS: Mapping[str, Metric] = {"hr": hit_rate, "ndcg": ndcg, "mrr": reciprocal_rank}


def metric_sums(ranks_U: Tensor, cutoffs: Sequence[int]) -> dict[str, float]:
    """Sums over users by name, ``hr@10`` and so on.

    Raises:
        ValueError: when a cut-off is below 1.

    """
    if any(cutoff < 1 for cutoff in cutoffs):
        raise ValueError(f"cut-offs must be at least 1, got {tuple(cutoffs)}")
    return {
        f"{name}@{cutoff}": float(metric(ranks_U, cutoff).sum())
        for name, metric in METRICS.items()
        for cutoff in cutoffs
    }
