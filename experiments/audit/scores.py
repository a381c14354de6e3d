"""How good a guess of items is, and what is reached without any upload."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.audit.upload import Bools, Floats, Guess


@dataclass(frozen=True)
class Score:
    """Of one guess against the true items; all are shares of one."""

    f1: float
    precision: float
    recall: float
    auc: float
    """Probability that a true item has a higher score than another one, ties count a half."""
    chance: float
    """Expected F1 of naming as many items of the catalogue at random."""
    all_items: float
    """F1 of naming the whole catalogue: the best guess that is the same for every user and does
    not know which items are popular."""


def score(guess: Guess, true_I: Bools) -> Score:
    """Judge a guess.

    With T true items among I and n named, a random choice of n hits nT/I of them on average, and
    F1 = 2 · hits / (n + T) is linear in the hits.

    Raises:
        ValueError: where there is no true item.

    """
    total, size = int(true_I.sum()), len(true_I)
    if total == 0:
        raise ValueError("there is no item to find")
    named = int(guess.named_I.sum())
    hits = int((guess.named_I & true_I).sum())
    return Score(
        f1=2 * hits / (named + total),
        precision=hits / named if named else 0.0,
        recall=hits / total,
        auc=auc(guess.scores_I, true_I),
        chance=2 * named * total / size / (named + total),
        all_items=2 * total / (size + total),
    )


def auc(scores_I: Floats, true_I: Bools) -> float:
    """Area under the ROC curve by mean ranks; 0.5 where one of the sides is empty."""
    positives = int(true_I.sum())
    others = len(true_I) - positives
    if not positives or not others:
        return 0.5
    _, place_I, counts = np.unique(scores_I, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    rank_I = (ends - (counts - 1) / 2)[place_I]
    wins = rank_I[true_I].sum() - positives * (positives + 1) / 2
    return float(wins / (positives * others))
