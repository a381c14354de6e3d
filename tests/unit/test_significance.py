from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.significance import holm, seed_interval, signed_rank, user_intervals


def test_holm_by_hand() -> None:
    """Sorted .01, .03, .04 times 3, 2, 1: .03, .06, and .04 raised to .06."""
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.7, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_lies_between_the_values_and_bonferroni(p_values: list[float]) -> None:
    for adjusted, p in zip(holm(p_values), p_values, strict=True):
        assert p <= adjusted <= min(1.0, len(p_values) * p) + 1e-12


def test_signed_rank_is_the_exact_test_on_small_data() -> None:
    """Ranks 1 to 6 of which only 2 is negative: 2 or less in the smaller sum has the subsets
    {}, {1}, {2} of 64, so the two-sided p is 2 · 3 / 64.
    """
    differences = np.array([1.0, -2.0, 3.0, 4.0, 5.0, 6.0]) / 100
    sums = [sum(r for r, s in zip(range(1, 7), signs, strict=True) if s)
            for signs in product((0, 1), repeat=6)]  # fmt: skip
    exact = 2 * sum(total <= 2 for total in sums) / len(sums)
    assert exact == 6 / 64
    assert signed_rank(differences) == pytest.approx(exact, abs=1e-12)


def test_users_without_a_difference_show_nothing() -> None:
    assert signed_rank(np.zeros(5)) == 1.0
    assert signed_rank(np.full(5, 1e-16)) == 1.0


def test_bits_lost_in_a_mean_over_seeds_break_no_ties() -> None:
    third = np.nextafter(1 / 3, 1)
    exact, lossy = np.full(12, 1 / 3), np.array([1 / 3, third] * 6)
    exact[0] = lossy[0] = -1 / 3
    assert signed_rank(lossy) == signed_rank(exact)


def test_bootstrap_interval_of_normal_values() -> None:
    """The mean of 400 values with sd 2 has standard error 0.1; the ends are the sample's mean
    ± 1.96 of its own errors. An end is a quantile of 9 999 draws: its standard error is
    √(.025 · .975 / 9999) / φ(1.96) = 0.027 errors, of which four are allowed.
    """
    values = np.random.default_rng(1).normal(0.5, 2.0, size=400)
    ((low, high),) = user_intervals(values[None], np.random.default_rng(2))
    error = values.std() / np.sqrt(400)
    for end, expected in ((low, -1.96), (high, 1.96)):
        assert (end - values.mean()) / error == pytest.approx(expected, abs=4 * 0.027)


def test_bootstrap_covers_as_often_as_it_says() -> None:
    """200 samples of 60: covered 190 times on average, sd 3.1; the percentile interval of a mean
    of 60 uses the normal's 1.96 √(59/60) for Student's 2.00, which covers 94.4 %: 188.8. Four sd.
    """
    rng = np.random.default_rng(3)
    samples = rng.normal(size=(200, 60))
    intervals = user_intervals(samples, rng)
    covered = sum(low <= 0 <= high for low, high in intervals)
    # All share their resamples, which are many enough not to matter.
    assert abs(covered - 188.8) <= 4 * np.sqrt(200 * 0.944 * 0.056)


def test_intervals_do_not_depend_on_what_is_beside_them() -> None:
    values = np.random.default_rng(4).normal(size=(3, 50))
    together = user_intervals(values, np.random.default_rng(5))
    alone = user_intervals(values[1:2], np.random.default_rng(5))
    assert together[1] == pytest.approx(alone[0], abs=1e-11)


def test_no_interval_over_a_single_user() -> None:
    ((low, high),) = user_intervals(np.ones((1, 1)), np.random.default_rng(0))
    assert np.isnan([low, high]).all()


def test_seed_interval_by_hand() -> None:
    """1, 2, 3: mean 2, sd 1, t(0.975, 2) = 4.3027; over √3 for the mean, times √(4/3) for one."""
    assert seed_interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 2.48414, 2 + 2.48414), abs=1e-4)
    wide = seed_interval([1.0, 2.0, 3.0], one_more=True)
    assert wide == pytest.approx((2 - 4.96828, 2 + 4.96828), abs=1e-4)
    assert seed_interval([1.0, 2.0]) is None
