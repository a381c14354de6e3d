"""Training negatives are uniform: chi-square tests at fixed seeds.

Each test rejects a correct sampler with probability 1e-4 over seeds; the seed is fixed, so the
outcome is too. The sensitivity test shows that the size of sample would reveal a real bias.
"""

from __future__ import annotations

import itertools

import numpy as np
from scipy.stats import chi2, chisquare

from client_app.candidates import TEST_STREAM, derived
from client_app.distinct import distinct_in_order, distinct_rows
from client_app.interactions import Interactions
from client_app.negatives import draw_samples, excluded_items
from client_app.ragged import Ragged
from client_app.split import split
from conf.tree import ProtocolConfig
from models.rng import Role, UserStreams
from models.types import IntArray

SIGNIFICANCE = 1e-4
NUM_ITEMS = 30
TRAIN = np.array([0, 3, 3, 7, 8, 9, 15, 29])
HELDOUT = np.array([4, 20])
DRAWS = 4_000


def negatives(rule: str, seed: int) -> tuple[IntArray, IntArray]:
    """Negatives (DRAWS · P, 4) of many users with the same items, and the items they may be."""
    train = Ragged(np.tile(TRAIN, DRAWS), np.full(DRAWS, len(TRAIN)))
    excluded = excluded_items(train, np.tile(HELDOUT, (DRAWS, 1)), rule, NUM_ITEMS)
    streams = UserStreams(seed, Role.TRAIN, 1, 0)
    uniforms = streams.uniforms(np.arange(DRAWS), train.lengths_U * 5).reshape(-1, 5)
    users = draw_samples(train, excluded, NUM_ITEMS, np.arange(DRAWS), uniforms)
    drawn = np.concatenate([samples.items_S for samples in users]).reshape(-1, 5)[:, 1:]
    return drawn, np.setdiff1d(np.arange(NUM_ITEMS), excluded.values)


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
    uniforms = UserStreams(3, Role.TRAIN).uniforms(np.arange(60_000), np.full(60_000, 3))
    drawn = distinct_in_order((uniforms.reshape(-1, 3) * (5 - np.arange(3))).astype(np.int64))
    keys = drawn @ np.array([25, 5, 1])
    selections = [a * 25 + b * 5 + c for a, b, c in itertools.permutations(range(5), 3)]
    counts = np.bincount(keys, minlength=125)[selections]
    assert counts.sum() == 60_000
    assert chisquare(counts).pvalue > SIGNIFICANCE


def test_many_columns_are_every_ordered_selection() -> None:
    """Two of five, by passing over repeats: 20 ordered selections. Three of five, by keys: 60."""
    for columns, selections in ((2, 20), (3, 60)):
        streams, users = UserStreams(4, Role.EVAL_NEGATIVES, columns), np.arange(60_000)
        drawn = distinct_rows(np.full(60_000, 5), columns, streams, users)
        counts = np.bincount(drawn @ 5 ** np.arange(columns))
        assert np.count_nonzero(counts) == selections
        assert chisquare(counts[counts > 0]).pvalue > SIGNIFICANCE


def test_positives_come_in_every_order() -> None:
    """Three positives: 6 orders, each with probability 1/6, for users of one block."""
    count = 6_000
    train = Ragged(np.tile(np.arange(3), count), np.full(count, 3))
    streams = UserStreams(4, Role.TRAIN, 1, 0)
    uniforms = streams.uniforms(np.arange(count), np.full(count, 6)).reshape(-1, 2)
    users = draw_samples(train, train, 9, np.arange(count), uniforms)
    orders = [samples.items_S[::2] for samples in users]
    keys = np.array(orders) @ np.array([9, 3, 1])
    counts = np.bincount(keys, minlength=27)
    assert np.count_nonzero(counts) == 6
    assert chisquare(counts[counts > 0]).pvalue > SIGNIFICANCE


def test_users_rounds_and_epochs_are_independent() -> None:
    """The pair of one number of two neighbouring streams: 64 cells, each with probability 1/64."""
    users = np.arange(20_000)
    ones = np.ones(len(users), dtype=np.int64)

    def cells(*indices: int) -> IntArray:
        drawn = UserStreams(8, Role.TRAIN, *indices).uniforms(users, ones)
        return (drawn * 8).astype(np.int64)

    here = cells(1, 0)
    for other in (np.roll(here, 1), cells(2, 0), cells(1, 1)):
        counts = np.bincount(8 * here + other, minlength=64)
        assert chisquare(counts).pvalue > SIGNIFICANCE


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
