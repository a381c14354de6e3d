"""Training samples: never an excluded item, distinct within a positive, each positive once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from client_app.errors import DataError
from client_app.negatives import draw_samples, excluded_items, nth_outside

ITEMS = st.lists(st.integers(0, 39), min_size=1, max_size=30)


@given(ITEMS, st.integers(0, 12), st.integers(0, 2**32 - 1))
def test_structure_of_the_samples(train: list[int], num_negatives: int, seed: int) -> None:
    """Repeated positives stay repeated; every group is one positive, then its negatives."""
    positives = np.sort(np.array(train, dtype=np.int64))
    excluded = excluded_items(positives, np.array([39]), "exclude_heldout")
    assume(40 - len(excluded) >= num_negatives)
    rng = np.random.default_rng(seed)
    samples = draw_samples(positives, excluded, 40, num_negatives, rng)
    assert samples.items_S.dtype == np.int64
    assert samples.labels_S.dtype == np.float32
    assert len(samples) == len(train) * (1 + num_negatives)
    groups = samples.items_S.reshape(len(train), 1 + num_negatives)
    labels = samples.labels_S.reshape(groups.shape)
    assert (labels[:, 0] == 1).all()
    assert (labels[:, 1:] == 0).all()
    assert Counter(groups[:, 0].tolist()) == Counter(train)
    for group in groups[:, 1:].tolist():
        assert len(set(group)) == num_negatives
        assert set(group) <= set(range(40)) - set(excluded.tolist())


@given(st.sets(st.integers(0, 39)))
def test_nth_outside_counts_the_items_that_are_left(excluded: set[int]) -> None:
    left = [item for item in range(40) if item not in excluded]
    found = nth_outside(np.arange(len(left)), np.array(sorted(excluded), dtype=np.int64))
    assert found.tolist() == left


def test_honest_pool_keeps_heldout_items_and_the_other_rule_removes_them() -> None:
    train, heldout = np.array([1, 4, 4, 6]), np.array([2, 4, 9])
    assert excluded_items(train, heldout, "honest").tolist() == [1, 4, 6]
    assert excluded_items(train, heldout, "exclude_heldout").tolist() == [1, 2, 4, 6, 9]
    with pytest.raises(ValueError, match=r"protocol\.negatives must be honest or"):
        excluded_items(train, heldout, "other")


def test_an_honest_draw_can_be_the_heldout_item() -> None:
    """Items 0–2 train, 3 is held out, 4 is any other: both are drawn for every positive."""
    train = np.arange(3)
    excluded = excluded_items(train, np.array([3]), "honest")
    samples = draw_samples(train, excluded, 5, 2, np.random.default_rng(0))
    assert all({3, 4} == set(group[1:]) for group in samples.items_S.reshape(3, 3).tolist())


def test_too_few_items_outside_is_an_error() -> None:
    train = np.arange(7)
    draw_samples(train, train, 10, 3, np.random.default_rng(0))
    message = r"4 negatives .* only 3 of 10 items .*lower strategy\.num_negatives"
    with pytest.raises(DataError, match=message):
        draw_samples(train, train, 10, 4, np.random.default_rng(0))


def test_same_stream_same_samples() -> None:
    train = np.arange(0, 90, 3)
    first, again = (draw_samples(train, train, 100, 4, np.random.default_rng(7)) for _ in "ab")
    np.testing.assert_array_equal(first.items_S, again.items_S)
