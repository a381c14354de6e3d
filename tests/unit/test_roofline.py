"""Counts of needed work, derived by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.roofline import Counts, Needs, Rates, mf_needs, neumf_needs
from models.sam import Radii
from models.types import Samples


def samples(*items: int) -> Samples:
    return Samples(np.array(items, dtype=np.int64), np.zeros(len(items), dtype=np.float32))


def test_pairs_and_items_are_counted_once() -> None:
    assert Counts.of([samples(3, 3, 1), samples(1, 2)]) == Counts(5, pairs=4, items=3, users=2)


COUNTS = Counts(samples=11, pairs=7, items=5, users=3)


@pytest.mark.parametrize(
    ("radii", "products"),
    [
        (Radii(), 7 * 3 * 10 + 5 * 3 * 16 + 3 * 3 * 16),
        (Radii(shared=0.1), 7 * (6 * 10 + 5 * 16) + 5 * 16 + 3 * 3 * 16),
        (Radii(private=0.1), 7 * 5 * 10 + 5 * 3 * 16 + 3 * 5 * 16),
        (Radii(0.1, 0.1), 7 * (8 * 10 + 5 * 16) + 5 * 16 + 3 * 5 * 16),
    ],
)
def test_neumf(radii: Radii, products: int) -> None:
    """One factor: layers 4 x 2 and 2 x 1 above the first, 10 products; its item half 4 x 4."""
    needs = neumf_needs(COUNTS, radii, factors=1)
    assert needs == Needs(2 * products, 11 * 12 + 2 * 4 * 5 * 5)


def test_neumf_of_the_paper_costs_164_thousand_multiply_adds_a_pair() -> None:
    one = neumf_needs(Counts(0, 1, 0, 0), Radii(0.02, 0.02), factors=32)
    assert one.flops == 2 * 163_840


@pytest.mark.parametrize(("radii", "passes"), [(Radii(), 3), (Radii(0.1), 3), (Radii(0.1, 0.1), 5)])
def test_mf(radii: Radii, passes: int) -> None:
    needs = mf_needs(COUNTS, radii, factors=2)
    assert needs == Needs(2 * 7 * passes * 2, 11 * 12 + 7 * 3 * 8)


def test_the_slower_of_arithmetic_and_memory_bounds() -> None:
    rates = Rates(flops=10.0, cached_bytes=4.0, memory_bytes=1.0)
    assert Needs(20.0, 4.0).seconds(rates) == 2.0
    assert Needs(10.0, 12.0).seconds(rates) == 3.0
    assert (rates + rates) == Rates(20.0, 8.0, 2.0)
