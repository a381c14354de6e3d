"""Training samples of a user: each positive with its own sampled negatives."""

from __future__ import annotations

import numpy as np

from client_app.errors import DataError
from models.types import IntArray, Samples


def excluded_items(train_items: IntArray, heldout: IntArray, rule: str) -> IntArray:
    """Sorted distinct items never drawn as a training negative.

    ``honest``: the user's training items, so that a held-out item may be drawn like any other.
    ``exclude_heldout``: held-out items too. That leaks the answer: an item the user has not
    trained on and that is never a negative can only be a held-out one.
    """
    if rule == "exclude_heldout":
        train_items = np.concatenate((train_items, heldout))
    elif rule != "honest":
        raise ValueError(f"protocol.negatives must be honest or exclude_heldout, got {rule!r}")
    return np.unique(train_items)


def draw_samples(
    train_items: IntArray,
    excluded: IntArray,
    num_items: int,
    num_negatives: int,
    rng: np.random.Generator,
) -> Samples:
    """Positives in random order, each followed by ``num_negatives`` distinct items.

    A positive is drawn once for each of its rows in ``train_items`` (P,). Its negatives are
    uniform, without replacement, over the items outside ``excluded`` (sorted, distinct), and
    independent of other positives'. Returns P · (1 + num_negatives) samples.

    Raises:
        DataError: when fewer than ``num_negatives`` items are outside ``excluded``.

    """
    outside = num_items - len(excluded)
    if outside < num_negatives:
        raise DataError(
            f"{num_negatives} negatives a positive were asked for, but only {outside} of "
            f"{num_items} items may be drawn for this user; lower strategy.num_negatives"
        )
    positives = rng.permutation(train_items)
    ranks = draw_distinct(len(positives), num_negatives, outside, rng)
    items = np.empty((len(positives), 1 + num_negatives), dtype=np.int64)
    items[:, 0] = positives
    items[:, 1:] = nth_outside(ranks, excluded)
    labels = np.zeros(items.shape, dtype=np.float32)
    labels[:, 0] = 1.0
    return Samples(items.reshape(-1), labels.reshape(-1))


def draw_distinct(rows: int, columns: int, below: int, rng: np.random.Generator) -> IntArray:
    """(rows, columns) whole numbers in [0, below), distinct within a row.

    Each row is uniform over the ordered selections: column k takes the t-th, t uniform, of the
    numbers its row has not yet taken.
    """
    drawn = rng.integers(0, below - np.arange(columns), size=(rows, columns), dtype=np.int64)
    taken = np.empty((columns, rows), dtype=np.int64)
    for k in range(columns):
        # Ascending, each number taken at or below t moves t up by one.
        for previous in np.sort(taken[:k], axis=0):
            drawn[:, k] += drawn[:, k] >= previous
        taken[k] = drawn[:, k]
    return drawn


def nth_outside(ranks: IntArray, excluded: IntArray) -> IntArray:
    """Items that are the ``ranks``-th, from 0, outside ``excluded`` (sorted, distinct)."""
    # excluded[j] - j items outside lie below excluded[j].
    below = excluded - np.arange(len(excluded))
    return ranks + np.searchsorted(below, ranks, side="right")
