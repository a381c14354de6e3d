"""Training negatives are uniform: chi-square tests at fixed seeds.

Each test rejects a correct sampler with probability 1e-4 over seeds; the seed is fixed, so the
outcome is too. The sensitivity test shows that the size of sample would reveal a real bias.
"""

from __future__ import annotations

import itertools

import numpy as np
from scipy.stats import chi2, chisquare

from client_app.candidates import TEST_STREAM, derived
from client_app.interactions import Interactions
from client_app.negatives import draw_distinct, draw_samples, excluded_items
from client_app.split import split
from conf.tree import ProtocolConfig
from models.types import IntArray

SIGNIFICANCE = 1e-4
NUM_ITEMS = 30
TRAIN = np.array([0, 3, 3, 7, 8, 9, 15, 29])
HELDOUT = np.array([4, 20])
DRAWS = 4_000


def negatives(rule: str, seed: int) -> tuple[IntArray, IntArray]:
    """Negatives (DRAWS · P, 4) of many independent epochs, and the items they may be."""
    excluded = excluded_items(TRAIN, HELDOUT, rule)
    rng = np.random.default_rng(seed)
    epochs = [draw_samples(TRAIN, excluded, NUM_ITEMS, 4, rng).items_S for _ in range(DRAWS)]
    return np.concatenate(epochs).reshape(-1, 5)[:, 1:], np.setdiff1d(
        np.arange(NUM_ITEMS), excluded
    )


def test_each_place_after_a_positive_is_uniform_over_the_pool() -> None:
    """Draws of one place of different positives are independent, as the test assumes."""
    for seed, rule in enumerate(("honest", "exclude_heldout")):
        drawn, pool = negatives(rule, seed)
        for place in range(4):
            counts = np.bincount(drawn[:, place], minlength=NUM_ITEMS)
            assert counts.sum() == counts[pool].sum()
            assert chisquare(counts[pool]).pvalue > SIGNIFICANCE


def test_every_ordered_selection_is_equally_likely() -> None:
    """Three of five without replacement: 60 ordered selections, each with probability 1/60."""
    drawn = draw_distinct(60_000, 3, 5, np.random.default_rng(3))
    keys = drawn @ np.array([25, 5, 1])
    selections = [a * 25 + b * 5 + c for a, b, c in itertools.permutations(range(5), 3)]
    counts = np.bincount(keys, minlength=125)[selections]
    assert counts.sum() == 60_000
    assert chisquare(counts).pvalue > SIGNIFICANCE


def test_positives_come_in_every_order() -> None:
    """Three positives: 6 orders, each with probability 1/6."""
    rng = np.random.default_rng(4)
    train = np.arange(3)
    orders = [draw_samples(train, train, 9, 1, rng).items_S[::2] for _ in range(6_000)]
    keys = np.array(orders) @ np.array([9, 3, 1])
    counts = np.bincount(keys, minlength=27)
    assert np.count_nonzero(counts) == 6
    assert chisquare(counts[counts > 0]).pvalue > SIGNIFICANCE


def test_the_test_would_see_a_biased_sampler() -> None:
    """Drawing with a skipped correction (ranks taken as they are) fails at the same size."""
    drawn = np.random.default_rng(3).integers(0, 5 - np.arange(3), size=(60_000, 3))
    counts = np.bincount(drawn[:, 2], minlength=5)
    assert chisquare(counts).pvalue < SIGNIFICANCE


def test_candidates_are_uniform_over_what_the_user_lacks() -> None:
    """4,000 users with the same five items of 25, 5 candidates each (one more user has the rest).

    Draws without replacement, C of M, spread less than a multinomial's: the statistic times
    (M - 1) / (M - C) is chi-square with M - 1 degrees of freedom.
    """
    users, items = np.divmod(np.arange(4_000 * 5), 5)
    items = items * 3
    ids = np.array([f"u{n}" for n in range(4_001)]), np.array([f"i{n}" for n in range(25)])
    rest = np.setdiff1d(np.arange(25), items)
    users, items = np.append(users, np.full(20, 4_000)), np.append(items, rest)
    data = Interactions(users, items, items, *ids, {})
    parts = split(data, ProtocolConfig(name="any", min_interactions=5), "any")
    drawn = derived(parts, 5, TEST_STREAM)[:4_000]
    counts = np.bincount(drawn.reshape(-1), minlength=25)
    assert counts[items[:5]].sum() == 0
    statistic = chisquare(counts[rest]).statistic * (20 - 1) / (20 - 5)
    assert chi2.sf(statistic, 19) > SIGNIFICANCE
