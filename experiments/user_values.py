"""Figures user by user, from the ranks that a run kept."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from models.metrics import METRICS
from models.types import IntArray
from server_app.report import SHOWN
from server_app.user_ranks import UserRanks

Values = npt.NDArray[np.float64]

AGREES = 1e-9
"""Means of at most 1 over users; sums in another order differ by far less, other ranks by more:
a hit that moves changes the mean by one over the number of users."""


def user_values(ranks: UserRanks, figure: str) -> Values | None:
    """Each user's value (U,) of a figure such as ``test/full/ndcg@10``, in the ranks' order.

    Rank r counts from 0: a hit is r < K, and NDCG@K is 1/log2(r + 2) of a hit. NaN for a user
    without a held-out item; None where these ranks were not kept.

    Raises:
        ValueError: for a metric other than hr and ndcg.

    """
    scope, _, metric = figure.rpartition("/")
    name, _, cutoff = metric.partition("@")
    if name not in {"hr", "ndcg"}:
        raise ValueError(f"users have no values of {figure}")
    if scope not in ranks.ranks:
        return None
    return metric_values(name, ranks.ranks[scope], int(cutoff))


def metric_values(name: str, ranks_U: IntArray, cutoff: int) -> Values:
    """A metric of ``models.metrics`` of each user (U,), of ranks from 0; NaN at a rank of -1."""
    # The metrics count ranks from 1; users without an item get their value after.
    from_one_U = torch.from_numpy(ranks_U + 1).clamp(min=1)
    values_U: Values = METRICS[name](from_one_U, cutoff).numpy()
    values_U[ranks_U < 0] = np.nan
    return values_U


def spread_out(ranks: UserRanks, figure: str, num_users: int) -> Values | None:
    """The same by global index (num_users,); NaN for users who were not ranked."""
    values_U = user_values(ranks, figure)
    if values_U is None:
        return None
    spread = np.full(num_users, np.nan)
    spread[ranks.users_U] = values_U
    return spread


def belongs(ranks: UserRanks, metrics: Mapping[str, float]) -> bool:
    """Whether the means of the users' values are the figures given, where both are there."""
    for figure in SHOWN:
        values_U = user_values(ranks, figure)
        if values_U is None or figure not in metrics or np.isnan(values_U).all():
            continue
        if abs(np.nanmean(values_U) - metrics[figure]) > AGREES:
            return False
    return True
