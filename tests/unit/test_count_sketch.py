"""The count sketch, and counts of pairs estimated from one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.count_sketch import CountSketch
from models.gram import num_pairs
from models.gram_sketch import estimated_pairs

KEYS = 2000


def sketched(sketch: CountSketch, values: torch.Tensor) -> torch.Tensor:
    sums = torch.zeros(sketch.rows, sketch.width).double()
    sketch.add(sums, np.arange(len(values)), values)
    return sums


def test_one_entry_is_found_exactly_in_every_row() -> None:
    sketch = CountSketch(3, 7)
    sums = torch.zeros(3, 7)
    sketch.add(sums, np.array([12]), torch.tensor([5.0]))
    assert sums.abs().sum(1).tolist() == [5, 5, 5]
    assert sketch.estimates(sums, np.array([12])).tolist() == [5]


def test_a_single_bucket_is_the_signed_sum() -> None:
    """With width 1 and one row, an estimate is sₖ Σ sᵢ vᵢ; its square is the same for all k."""
    sketch, keys = CountSketch(1, 1), np.arange(6)
    signs = []
    for key in keys:
        sums = torch.zeros(1, 1)
        sketch.add(sums, np.array([key]), torch.tensor([1.0]))
        signs.append(sums.item())
    assert {abs(sign) for sign in signs} == {1}
    values = torch.tensor([1.0, 2, 4, 8, 16, 32])
    total = sum(s * v for s, v in zip(signs, values.tolist(), strict=True))
    got = sketch.estimates(sketched(sketch, values.double()), keys)
    assert got.tolist() == [s * total for s in signs]


def test_the_median_of_the_rows_counts() -> None:
    sketch, sums = CountSketch(3, 5), torch.zeros(3, 5)
    sketch.add(sums, np.array([3]), torch.tensor([10.0]))
    sums[0] *= 100
    assert sketch.estimates(sums, np.array([3])).tolist() == [10]


@given(st.lists(st.tuples(st.integers(0, KEYS - 1), st.integers(-9, 9)), min_size=1, max_size=40))
def test_a_sketch_is_linear(pairs: list[tuple[int, int]]) -> None:
    """Whole numbers add up exactly in any order, and repeated keys add up."""
    sketch = CountSketch(2, 11)
    keys, values = np.array([k for k, _ in pairs]), torch.tensor([float(v) for _, v in pairs])
    together, apart = torch.zeros(2, 11), torch.zeros(2, 11)
    sketch.add(together, keys, values)
    for at in reversed(range(len(keys))):
        sketch.add(apart, keys[at : at + 1], values[at : at + 1])
    assert torch.equal(together, apart)


def test_estimates_are_unbiased_with_the_variance_of_the_paper() -> None:
    """Values of 1 in 2,000 entries, width 50: variance (2000 - 1)/50 = 40 an estimate.

    The mean error over entries is (Σ over buckets of b² - 2000)/2000, b² of mean 40 and variance
    2·40²: standard error √50·√2·40/2000 = 0.2. The mean square is Σ n b²/2000 with n = 40 entries
    a bucket: relative standard error √(2/50) = 0.2 from 50 squared normals; four of each.
    """
    error = CountSketch(1, 50)
    estimates = error.estimates(sketched(error, torch.ones(KEYS).double()), np.arange(KEYS)) - 1
    assert abs(float(estimates.mean())) < 4 * 0.2
    assert float((estimates**2).mean()) == pytest.approx(40, rel=4 * 0.2)


def test_signs_and_buckets_are_uniform_and_rows_differ() -> None:
    """20,000 signs: a standard error of √20000 = 141 in their sum, five of them."""
    sketch, keys = CountSketch(2, 16), np.arange(20_000)
    index = [sketch._hashed(row, keys, torch.zeros(1)) for row in range(2)]
    for buckets, signs in index:
        assert abs(float(signs.sum())) < 5 * 141
        counts = buckets.bincount(minlength=16).double()
        # 1,250 a bucket with a standard deviation of 34.
        assert float((counts - 1250).abs().max()) < 5 * 34
    # Rows agree on a bucket by chance: 1 in 16, ± 34 of 1,250.
    assert abs(int((index[0][0] == index[1][0]).sum()) - 1250) < 5 * 34


def counted(users: int, items: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Item counts and pairs of made-up users with two tastes."""
    rng = np.random.default_rng(0)
    taste = np.where(np.arange(users)[:, None] % 2 == np.arange(items) % 2, 0.5, 0.1)
    rows = torch.from_numpy((rng.random((users, items)) < taste).astype(np.float64))
    gram_II = rows.T @ rows
    lower = torch.tril_indices(items, items, -1)
    return gram_II.diagonal().clone(), gram_II[lower[0], lower[1]]


def test_pairs_are_exact_where_no_two_share_a_bucket_and_bounded_where_they_do() -> None:
    counts_I, pairs_P = counted(40, 12)
    wide = CountSketch(5, 1 << 16)  # 66 pairs: a row has a collision with probability 0.03
    # Exact but for the products that are subtracted and added again: some units of 1e-15 of 400.
    got = estimated_pairs(wide, sketched(wide, pairs_P), counts_I)
    torch.testing.assert_close(got, pairs_P, rtol=1e-9, atol=1e-9)
    narrow = CountSketch(1, 3)
    got = estimated_pairs(narrow, sketched(narrow, pairs_P), counts_I)
    lower = torch.tril_indices(12, 12, -1)
    assert (got >= 0).all()
    assert (got <= torch.minimum(counts_I[lower[0]], counts_I[lower[1]])).all()


def test_counts_and_shrinkage_beat_the_plain_estimate() -> None:
    counts_I, pairs_P = counted(300, 120)
    sketch = CountSketch(3, 400)
    sums = sketched(sketch, pairs_P)
    plain = sketch.estimates(sums, np.arange(num_pairs(120)))
    got = estimated_pairs(sketch, sums, counts_I)
    assert float((got - pairs_P).norm()) < 0.3 * float((plain - pairs_P).norm())


def test_nothing_counted_is_nothing_estimated() -> None:
    assert not estimated_pairs(CountSketch(3, 4), torch.zeros(3, 4), torch.zeros(5)).any()


@pytest.mark.parametrize(("rows", "width"), [(0, 3), (3, 0)])
def test_bad_shapes(rows: int, width: int) -> None:
    with pytest.raises(ValueError, match="at least one row and one bucket"):
        CountSketch(rows, width)
