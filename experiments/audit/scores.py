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
    """Expected F1 of naming, at random among the attack's candidates, as many items as are true."""
    chance_named: float
    """The same of as many items of the catalogue as the attack names."""
    all_items: float
    """F1 of naming the whole catalogue: the best guess that is the same for every user and does
    not know which items are popular."""


def score(guess: Guess, true_I: Bools) -> Score:
    """Judge a guess.

    T items of I are true, c of the C candidates. F1 = 2 · hits / (named + T) is linear in the
    hits, so its expectation is that of the mean number of hits: naming T of the candidates hits
    Tc/C of them, or all c where T > C; naming n of the catalogue hits nT/I.

    Raises:
        ValueError: where there is no true item.

    """
    total, size = int(true_I.sum()), len(true_I)
    if total == 0:
        raise ValueError("there is no item to find")
    named = int(guess.named_I.sum())
    hits = int((guess.named_I & true_I).sum())
    among_I = np.ones(size, dtype=bool) if guess.considered_I is None else guess.considered_I
    candidates = int(among_I.sum())
    drawn = min(total, candidates)
    found = drawn * int((among_I & true_I).sum()) / max(candidates, 1)
    return Score(
        f1=2 * hits / (named + total),
        precision=hits / named if named else 0.0,
        recall=hits / total,
        auc=auc(guess.scores_I, true_I),
        chance=2 * found / (drawn + total),
        chance_named=2 * named * total / size / (named + total),
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
