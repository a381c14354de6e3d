"""Streams of uniform numbers: what they depend on, and on nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.rng import Role, UserStreams

USERS = np.array([7, 0, 123_456_789])


def test_numbers_are_those_of_numpys_philox() -> None:
    """Key from the seed sequence, the user in the second word of the counter."""
    sequence = np.random.SeedSequence(3, spawn_key=(int(Role.TRAIN), 5, 1))
    key = sequence.generate_state(2, np.uint64)
    got = UserStreams(3, Role.TRAIN, 5, 1).uniforms(USERS, [4, 5, 6])
    expected = [
        np.random.Generator(np.random.Philox(key=key, counter=[0, user, 0, 0])).random(count)
        for user, count in zip(USERS.tolist(), (4, 5, 6), strict=True)
    ]
    assert np.array_equal(got, np.concatenate(expected))


@given(st.lists(st.integers(0, 9), min_size=3, max_size=3))
def test_more_numbers_and_other_users_change_nothing(counts: list[int]) -> None:
    streams = UserStreams(1, Role.TRAIN, 2)
    long = streams.uniforms(USERS, [9, 9, 9]).reshape(3, 9)
    parts = np.split(streams.uniforms(USERS, counts), np.cumsum(counts)[:-1])
    for part, row in zip(parts, long, strict=True):
        assert np.array_equal(part, row[: len(part)])


def test_streams_differ_by_seed_role_index_and_user() -> None:
    streams = [
        UserStreams(0, Role.TRAIN, 1),
        UserStreams(1, Role.TRAIN, 1),
        UserStreams(0, Role.EVAL_NEGATIVES, 1),
        UserStreams(0, Role.TRAIN, 2),
        UserStreams(0, Role.TRAIN, 1, 0),
    ]
    rows = np.concatenate([s.uniforms(np.arange(5), [3] * 5).reshape(5, 3) for s in streams])
    assert len(np.unique(rows)) == rows.size


def test_no_users_and_no_numbers() -> None:
    streams = UserStreams(0, Role.TRAIN)
    assert streams.uniforms(np.array([], dtype=np.int64), []).shape == (0,)
    assert streams.uniforms(USERS, [0, 0, 0]).shape == (0,)


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="seed and indices"):
        UserStreams(-1, Role.TRAIN)
    with pytest.raises(ValueError, match="seed and indices"):
        UserStreams(0, Role.TRAIN, -3)
    with pytest.raises(ValueError, match="users must not be negative"):
        UserStreams(0, Role.TRAIN).uniforms(np.array([1, -2]), [1, 1])
