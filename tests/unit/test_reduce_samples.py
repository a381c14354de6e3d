"""Flat samples and distinct keys against hand-made cases and numpy's own sort."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.losses import sample_weights
from models.reduce_samples import TABLE_PER_KEY, distinct, flatten_samples, slice_weights
from models.types import Samples


def test_flat_samples_by_hand() -> None:
    """Slices of 2: the samples of the first user weigh 1/2, 1/2 and 1."""
    users = [
        Samples(np.array([4, 4, 2]), np.array([1, 0, 0], dtype=np.float32)),
        Samples(np.array([], dtype=np.int64), np.array([], dtype=np.float32)),
        Samples(np.array([9]), np.array([1], dtype=np.float32)),
    ]
    flat = flatten_samples(users, 10, 2)
    assert flat.lengths_U.tolist() == [3, 0, 1]
    assert flat.users_S.tolist() == [0, 0, 0, 2]
    assert flat.items_S.tolist() == [4, 4, 2, 9]
    assert flat.labels_S.tolist() == [1, 0, 0, 1]
    assert flat.weights_S.tolist() == [0.5, 0.5, 1, 1]


@pytest.mark.parametrize("item", [-1, 10])
def test_item_outside_the_catalogue(item: int) -> None:
    bad = [Samples(np.array([3, item]), np.zeros(2, dtype=np.float32))]
    with pytest.raises(ValueError, match=r"item indices must lie in 0\.\.9"):
        flatten_samples(bad, 10, 128)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 9))
def test_slice_weights_are_those_of_each_user(lengths: list[int], loss_slice: int) -> None:
    expected = np.concatenate([sample_weights(n, loss_slice) for n in lengths])
    assert np.array_equal(slice_weights(np.array(lengths), loss_slice), expected)


@given(st.lists(st.integers(0, 50), max_size=60), st.sampled_from([51, TABLE_PER_KEY * 61]))
def test_distinct_by_table_and_by_sort(keys: list[int], num_keys: int) -> None:
    """Range 51 is numbered by a table once there are two keys, the other range by a sort."""
    keys_S = np.array(keys, dtype=np.int64)
    keys_P, position_S = distinct(keys_S, num_keys)
    assert keys_P.tolist() == sorted(set(keys))
    assert keys_P[position_S].tolist() == keys
