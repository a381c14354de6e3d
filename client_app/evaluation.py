"""Ranking of held-out items for all users of a node, in blocks of bounded memory.

Sampled: the held-out item against the user's sampled negatives. Full: against the whole
catalogue without the user's training items. A held-out item that is a training item as well
(repeats kept) is ranked all the same. Ranking test leaves out the validation item; ranking
validation keeps the test item as an ordinary candidate, since it is unknown at that time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from client_app.data import Dataset
from models.metrics import metric_sums, ranks
from models.types import IntArray

CatalogueScores = Callable[[IntArray], Tensor]
"""Users (U,) to their scores of all items (U, I)."""
CandidateScores = Callable[[IntArray, IntArray], Tensor]
"""Users (U,) and items (U, C) to scores (U, C)."""

EXPOSURE_CUTOFF = 10
Watch = Callable[[IntArray, Tensor], Mapping[str, tuple[float, int]]]
"""Users (U,) and their scores (U, I) to more sums, each with its number of users, by metric."""


@dataclass(frozen=True)
class RankingSums:
    """Sums over users and how many users are behind each, by ``test/sampled/hr@10`` and so on.

    ``exposure_I`` counts how often an item stands in the full top 10 of a user with a test
    item, training and validation items left out; None without full ranking.
    """

    metrics: dict[str, float]
    counts: dict[str, float]
    exposure_I: IntArray | None
    ranks: dict[str, IntArray]
    """By ``test/sampled`` and so on: rank (U,) of each user's held-out item, 0 the best, -1
    without one. As with the metrics, a split of which no user has an item is not there."""


@dataclass(frozen=True)
class _Split:
    """One held-out item a user (-1: none) and what it is ranked against."""

    name: str
    heldout_U: IntArray
    candidates_UC: IntArray
    hidden_U: IntArray
    """An item the user is known to have by then, beside the training items; -1: none."""


def evaluate(
    catalogue_scores: CatalogueScores,
    dataset: Dataset,
    users: IntArray,
    cutoffs: Sequence[int],
    full: bool,
    block: int,
    candidate_scores: CandidateScores | None = None,
    watch: Watch | None = None,
) -> RankingSums:
    """Rank the held-out items of ``users``, ``block`` users at a time.

    Sampled candidates are scored by ``candidate_scores``, or gathered from the catalogue's
    scores where these are at hand (``full``) or nothing else is given. ``watch`` adds metrics to
    a full ranking.

    Raises:
        ValueError: for NaN or misshapen scores, a cut-off or block below 1.

    """
    if block < 1:
        raise ValueError(f"block must be at least 1, got {block}")
    metrics, counts = defaultdict[str, float](float), defaultdict[str, float](float)
    ranks_by = defaultdict[str, IntArray](lambda: np.full(len(users), -1, dtype=np.int64))
    exposure_I = np.zeros(dataset.num_items, dtype=np.int64) if full else None
    gather = full or candidate_scores is None
    for start in range(0, len(users), block):
        users_U = users[start : start + block]
        scores_UI = _catalogue(catalogue_scores, users_U, dataset.num_items) if gather else None
        for name, has, ranks_U in _ranked(dataset, users_U, scores_UI, candidate_scores, full):
            ranks_by[name][start + has] = ranks_U.numpy() - 1
            for metric, value in metric_sums(ranks_U, cutoffs).items():
                metrics[f"{name}/{metric}"] += value
                counts[f"{name}/{metric}"] += len(ranks_U)
        if exposure_I is not None and scores_UI is not None:
            exposure_I += _exposure(dataset, users_U, scores_UI)
            for name, (total, count) in (
                {} if watch is None else watch(users_U, scores_UI)
            ).items():
                metrics[name] += total
                counts[name] += count
    return RankingSums(dict(metrics), dict(counts), exposure_I, dict(ranks_by))


def popularity(item_counts_I: IntArray) -> tuple[CatalogueScores, CandidateScores]:
    """Scorers that rank items by a count, alike for all users."""
    counts_I = torch.from_numpy(item_counts_I.astype(np.float64))

    def catalogue(users: IntArray) -> Tensor:
        return counts_I.expand(len(users), -1)

    def candidates(users: IntArray, items_UC: IntArray) -> Tensor:
        return counts_I[torch.from_numpy(items_UC)]

    return catalogue, candidates


def _catalogue(score: CatalogueScores, users_U: IntArray, num_items: int) -> Tensor:
    scores_UI = score(users_U)
    if scores_UI.shape != (len(users_U), num_items):
        expected = (len(users_U), num_items)
        raise ValueError(f"scores have shape {tuple(scores_UI.shape)}, expected {expected}")
    return scores_UI


def _splits(dataset: Dataset, users_U: IntArray) -> tuple[_Split, _Split]:
    test_U, validation_U = dataset.heldout(users_U).T
    none_U = np.full_like(test_U, -1)
    return (
        _Split("test", test_U, dataset.candidates("test", users_U), validation_U),
        _Split("validation", validation_U, dataset.candidates("validation", users_U), none_U),
    )


def _ranked(
    dataset: Dataset,
    users_U: IntArray,
    scores_UI: Tensor | None,
    candidate_scores: CandidateScores | None,
    full: bool,
) -> Iterator[tuple[str, IntArray, Tensor]]:
    """By split and kind of ranking: places of the users with a held-out item, and its ranks."""
    for split in _splits(dataset, users_U):
        (has,) = np.nonzero(split.heldout_U >= 0)
        if not len(has):
            continue
        heldout_U1 = split.heldout_U[has, None]
        items_UC = np.concatenate([heldout_U1, split.candidates_UC[has]], axis=1)
        if scores_UI is not None:
            scores_UC = scores_UI[torch.from_numpy(has)].gather(1, torch.from_numpy(items_UC))
        else:
            assert candidate_scores is not None
            scores_UC = candidate_scores(users_U[has], items_UC)
        yield f"{split.name}/sampled", has, ranks(scores_UC[:, 0], scores_UC[:, 1:])
        if full and scores_UI is not None:
            counted_UI = _unknown(dataset, users_U[has], split.hidden_U[has])
            # The held-out item is no candidate against itself.
            counted_UI.scatter_(1, torch.from_numpy(heldout_U1), value=False)
            catalogue_UI = scores_UI[torch.from_numpy(has)]
            yield f"{split.name}/full", has, ranks(scores_UC[:, 0], catalogue_UI, counted_UI)


def _unknown(dataset: Dataset, users_U: IntArray, hidden_U: IntArray) -> Tensor:
    """True for items that are neither a training item of the user nor its hidden one (U, I)."""
    train = dataset.train_rows(users_U)
    unknown_UI = np.ones((len(users_U), dataset.num_items), dtype=bool)
    unknown_UI[train.users, train.values] = False
    (hides,) = np.nonzero(hidden_U >= 0)
    unknown_UI[hides, hidden_U[hides]] = False
    return torch.from_numpy(unknown_UI)


def _exposure(dataset: Dataset, users_U: IntArray, scores_UI: Tensor) -> IntArray:
    """Counts (I,) of the items in the top 10 of the users that have a test item."""
    test_U, validation_U = dataset.heldout(users_U).T
    (has,) = np.nonzero(test_U >= 0)
    unknown_UI = _unknown(dataset, users_U[has], validation_U[has])
    open_UI = scores_UI[torch.from_numpy(has)].masked_fill(~unknown_UI, -torch.inf)
    top_UK = open_UI.topk(min(EXPOSURE_CUTOFF, dataset.num_items), dim=1).indices
    # A user with fewer than ten unknown items has known ones at the end of its list.
    shown = top_UK[unknown_UI.gather(1, top_UK)]
    return np.bincount(shown.numpy(), minlength=dataset.num_items)
