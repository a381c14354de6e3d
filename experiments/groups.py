"""Accuracy by group of users: by how much they interacted, and by how popular the answer is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from client_app.data import Dataset
from experiments.user_values import metric_values
from models.types import IntArray
from server_app.ranking import popular_items

Floats = npt.NDArray[np.float64]
TERCILES = (1 / 3, 2 / 3)
NAMES = {2: ("few", "many"), 3: ("few", "medium", "many")}


@dataclass(frozen=True)
class Grouping:
    """Users in K groups."""

    names: tuple[str, ...]
    group_U: IntArray
    """Group of each user, -1 for one who is in none."""


@dataclass(frozen=True)
class GroupAccuracy:
    """Metrics of one method in each of K groups, as shares of one; nan for an empty group."""

    names: tuple[str, ...]
    cutoff: int
    users_K: IntArray
    """Users with a held-out item."""
    hit_K: Floats
    hit_error_K: Floats
    """Standard error of the mean over users; nan for fewer than two."""
    ndcg_K: Floats
    ndcg_error_K: Floats


def by_activity(
    dataset: Dataset, users_U: IntArray, quantiles: Sequence[float] = TERCILES
) -> Grouping:
    """Users by their number of training interactions, cut at quantiles over these users.

    Users with equal numbers are in the same group: that of the numbers up to and including the
    quantile (the least number that at least this share of the users do not exceed). The name of a
    group says its least and greatest number.
    """
    lengths_U = dataset.train_lengths(users_U)
    edges = np.quantile(lengths_U, quantiles, method="inverted_cdf")
    group_U = np.searchsorted(edges, lengths_U, side="left").astype(np.int64)
    count = len(quantiles) + 1
    words = NAMES.get(count, tuple(f"group {k + 1}" for k in range(count)))
    names = tuple(_named(word, lengths_U[group_U == k]) for k, word in enumerate(words))
    return Grouping(names, group_U)


def by_answer(
    dataset: Dataset, users_U: IntArray, split: Literal["test", "validation"] = "test"
) -> Grouping:
    """Users by their held-out item: among the tenth of the items with most interactions, or not.

    Interactions are the training rows of all users of the data. Users without a held-out item
    are in no group.
    """
    counts_I = dataset.item_counts(np.arange(dataset.num_users))
    popular_I = np.zeros(dataset.num_items, dtype=np.bool_)
    popular_I[popular_items(counts_I)] = True
    items_U = dataset.heldout(users_U)[:, 0 if split == "test" else 1]
    group_U = np.where(items_U < 0, -1, np.where(popular_I[items_U], 0, 1)).astype(np.int64)
    return Grouping(("popular items (top 10 %)", "long tail"), group_U)


def accuracy_in_groups(grouping: Grouping, ranks_U: IntArray, cutoff: int = 10) -> GroupAccuracy:
    """HR and NDCG at a cut-off in each group, from ranks (U,): 0 the best, -1 without an item."""
    members = [(ranks_U >= 0) & (grouping.group_U == k) for k in range(len(grouping.names))]
    figures = []
    for metric in ("hr", "ndcg"):
        values_U = metric_values(metric, ranks_U, cutoff)
        figures += [*np.array([_mean_and_error(values_U[member]) for member in members]).T]
    users_K = np.array([np.count_nonzero(member) for member in members], dtype=np.int64)
    return GroupAccuracy(grouping.names, cutoff, users_K, *figures)


def _mean_and_error(values_u: Floats) -> tuple[float, float]:
    count = len(values_u)
    mean = float(values_u.mean()) if count else float("nan")
    error = float(values_u.std(ddof=1) / np.sqrt(count)) if count > 1 else float("nan")
    return mean, error


def _named(word: str, lengths_u: IntArray) -> str:
    if not len(lengths_u):
        return word
    least, most = int(lengths_u.min()), int(lengths_u.max())
    return f"{word} ({least}–{most})" if least < most else f"{word} ({least})"
