from __future__ import annotations

import numpy as np
import pytest

from server_app.sampling import cohort_size, ranked_users, sample_cohort


@pytest.mark.parametrize(
    ("num_users", "fraction", "size"),
    [(943, 0.1, 94), (100, 0.29, 29), (10, 0.3, 3), (5, 0.1, 1), (7, 1.0, 7), (1, 0.001, 1)],
)
def test_cohort_is_the_exact_floor_and_at_least_one(
    num_users: int, fraction: float, size: int
) -> None:
    """In binary 0.29 * 100 is 28.999..., but 29 users were asked for."""
    assert cohort_size(num_users, fraction) == size


@pytest.mark.parametrize(("num_users", "fraction"), [(0, 0.5), (10, 0.0), (10, 1.1)])
def test_impossible_cohorts_are_refused(num_users: int, fraction: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        cohort_size(num_users, fraction)


def test_cohorts_are_distinct_ascending_users() -> None:
    for server_round in range(1, 50):
        users = sample_cohort(3, server_round, 100, 0.2)
        assert users.dtype == np.int64
        assert len(users) == 20
        assert (np.diff(users) > 0).all()
        assert users[0] >= 0 and users[-1] < 100


def test_a_cohort_depends_on_seed_and_round_alone() -> None:
    again = sample_cohort(3, 7, 100, 0.2)
    assert np.array_equal(sample_cohort(3, 7, 100, 0.2), again)
    assert not np.array_equal(sample_cohort(3, 8, 100, 0.2), again)
    assert not np.array_equal(sample_cohort(4, 7, 100, 0.2), again)


def test_global_random_state_is_neither_used_nor_changed() -> None:
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    sample_cohort(0, 1, 50, 0.5)
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_every_user_is_drawn_equally_often() -> None:
    """2000 rounds of 5 of 20: each user's count is binomial(2000, 1/4), mean 500 and standard
    deviation sqrt(2000 * 3/16) = 19.4; 4.5 of them hold for all 20 users with
    p > 0.9998, and the seed is fixed."""
    counts = np.zeros(20)
    for server_round in range(1, 2001):
        counts[sample_cohort(0, server_round, 20, 0.25)] += 1
    assert np.abs(counts - 500).max() < 4.5 * 19.4


def test_ranked_users() -> None:
    """As many as asked for, by the seed alone; nobody is left out when there are no more."""
    users = ranked_users(3, 100, 7)
    assert users is not None
    assert len(users) == 7 and (np.diff(users) > 0).all() and 0 <= users[0] <= users[-1] < 100
    assert np.array_equal(ranked_users(3, 100, 7), users)
    assert not np.array_equal(ranked_users(4, 100, 7), users)
    assert ranked_users(3, 100, None) is None
    assert ranked_users(3, 100, 100) is None
