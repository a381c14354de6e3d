"""One user's update within its bounds, and how far a sum of them moves between neighbours."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.clipping import Bounds, clipped, noisy, norm
from models.noise import SeededNoise, SystemNoise, gaussian_noise
from models.rng import Role
from models.types import SumOfUpdates, Tensors, Update

TABLE, DENSE = "item_emb", "layer"
TEMPLATE = {TABLE: torch.zeros(3, 2), DENSE: torch.zeros(2)}


def update(table: list[list[float]], dense: list[float], weight: float = 1.0) -> Update:
    return Update({TABLE: torch.tensor(table), DENSE: torch.tensor(dense)}, weight)


LONG = update([[2.0, 0.0], [0.0, 0.0], [0.0, 4.0]], [4.0, 0.0])  # squares 4 + 16 + 16: norm 6


def test_a_long_update_is_scaled_to_the_bound() -> None:
    found = clipped(LONG, Bounds(1.5))
    assert found.was_above
    torch.testing.assert_close(found.update.tensors[DENSE], torch.tensor([1.0, 0.0]))
    assert norm(found.update.tensors) <= 1.5


def test_a_short_update_stays_as_it_is() -> None:
    found = clipped(LONG, Bounds(6.1))
    assert not found.was_above
    assert found.update.tensors[TABLE] is LONG.tensors[TABLE]


def test_tables_and_other_tensors_have_bounds_of_their_own() -> None:
    bounds = Bounds(1.0, 2.0, frozenset({TABLE}))
    tensors = clipped(LONG, bounds).update.tensors
    # The table's norm is √20, the layer's 4.
    torch.testing.assert_close(tensors[TABLE], LONG.tensors[TABLE] / math.sqrt(20))
    torch.testing.assert_close(tensors[DENSE], torch.tensor([2.0, 0.0]))
    assert bounds.total == pytest.approx(math.sqrt(5))
    assert norm(tensors) <= bounds.total


def test_the_weight_is_taken_out_before_the_norm() -> None:
    weighted = Update({n: 7 * t for n, t in LONG.tensors.items()}, 7.0)
    found = clipped(weighted, Bounds(6.1))
    assert found.update.weight == 1.0
    torch.testing.assert_close(found.update.tensors, LONG.tensors)


def test_rows_that_occur_twice_count_as_their_sum() -> None:
    twice = torch.sparse_coo_tensor([[0, 0]], torch.tensor([[3.0, 0.0], [1.0, 0.0]]), (3, 2))
    found = clipped(Update({TABLE: twice}, 1.0), Bounds(2.0))
    expected = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(found.update.tensors[TABLE].to_dense(), expected)


def test_idle_tensors_become_zero() -> None:
    found = clipped(LONG, Bounds(100.0), frozenset({DENSE})).update.tensors
    assert not found[DENSE].any() and found[TABLE].any()


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        clipped(update([[bad, 0.0]], [0.0]), Bounds(1.0))


def test_row_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="row weights"):
        clipped(Update(LONG.tensors, 1.0, {TABLE: torch.ones(3)}), Bounds(1.0))


numbers = st.floats(-1e3, 1e3, width=32)
updates = st.builds(
    update,
    st.lists(st.lists(numbers, min_size=2, max_size=2), min_size=3, max_size=3),
    st.lists(numbers, min_size=2, max_size=2),
    st.sampled_from([1.0, 3.0]),
)
ROUNDING = 1e-5
"""Of a sum of at most six float32 vectors of norm 2 at most: 6 · 2 · 2⁻²⁴ each, √8 numbers."""


def summed(users: list[Update], bounds: Bounds) -> Tensors:
    total = SumOfUpdates(TEMPLATE)
    for each in users:
        total.add(clipped(each, bounds).update)
    return total.result().tensors


def distance(one: Tensors, two: Tensors) -> float:
    return norm({n: one[n].double() - two[n].double() for n in one})


@settings(max_examples=60, deadline=None)
@given(
    st.lists(updates, min_size=0, max_size=5),
    updates,
    updates,
    st.sampled_from([Bounds(1.0), Bounds(0.5, 1.5, frozenset({TABLE}))]),
)
def test_neighbours_sums_differ_by_the_stated_sensitivity(
    others: list[Update], own: Update, another: Update, bounds: Bounds
) -> None:
    without, with_own = summed(others, bounds), summed([*others, own], bounds)
    assert distance(without, with_own) <= bounds.total + ROUNDING
    replaced = summed([*others, another], bounds)
    assert distance(with_own, replaced) <= 2 * bounds.total + ROUNDING


def test_the_bounds_are_reached() -> None:
    """Else the sensitivity would be stated too high, and the property above say nothing."""
    opposite = Update({n: -t for n, t in LONG.tensors.items()}, 1.0)
    one, two = summed([LONG], Bounds(1.0)), summed([opposite], Bounds(1.0))
    assert distance(one, TEMPLATE) == pytest.approx(1.0, abs=1e-5)
    assert distance(one, two) == pytest.approx(2.0, abs=1e-5)


@pytest.mark.parametrize("source", [SeededNoise(1, Role.PRIVACY_SERVER, 3), SystemNoise()])
def test_noise_has_the_stated_deviation(source: SeededNoise | SystemNoise) -> None:
    like, count = {"b": torch.zeros(100, 400), "a": torch.zeros(10_000)}, 50_000
    noise = gaussian_noise(like, 0.3, source)
    values = torch.cat([noise["a"], noise["b"].flatten()]).double()
    # Six standard errors: of the mean σ/√n, of the deviation σ/√(2n).
    assert abs(float(values.mean())) < 6 * 0.3 / math.sqrt(count)
    assert float(values.std()) == pytest.approx(0.3, abs=6 * 0.3 / math.sqrt(2 * count))
    # The share within one deviation tells a Gaussian: 0.6827 ± six times √(p(1−p)/n).
    share = float((values.abs() < 0.3).double().mean())
    assert share == pytest.approx(0.6827, abs=6 * math.sqrt(0.6827 * 0.3173 / count))


def test_seeded_noise_is_repeatable_and_system_noise_is_not() -> None:
    like = {"a": torch.zeros(4)}
    one, two = (gaussian_noise(like, 1.0, SeededNoise(1, Role.PRIVACY_USER, 2)) for _ in range(2))
    torch.testing.assert_close(one, two, rtol=0, atol=0)
    three, four = (gaussian_noise(like, 1.0, SystemNoise()) for _ in range(2))
    assert not torch.equal(three["a"], four["a"])


def test_every_number_of_a_sparse_table_gets_noise() -> None:
    sparse = torch.sparse_coo_tensor([[1]], torch.tensor([[1.0, 1.0]]), (3, 2))
    noise = gaussian_noise({TABLE: sparse}, 1.0, SeededNoise(0, Role.PRIVACY_USER, 0))
    assert bool((noisy({TABLE: sparse}, noise)[TABLE] != 0).all())
