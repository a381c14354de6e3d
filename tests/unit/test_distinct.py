"""Numbers without replacement and items outside, against plain definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_app import distinct
from client_app.distinct import distinct_in_order, distinct_rows, nth_outside
from client_app.ragged import Ragged
from models.rng import Role, UserStreams

OWN = st.lists(st.sets(st.integers(0, 39), max_size=39), min_size=1, max_size=5)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 7), st.integers(0, 6)), max_size=9))
def test_each_column_takes_the_nth_number_left(rows: list[tuple[int, int, int]]) -> None:
    taken = distinct_in_order(np.array(rows, dtype=np.int64).reshape(-1, 3))
    for row, got in zip(rows, taken.tolist(), strict=True):
        left = list(range(9))
        assert got == [left.pop(t) for t in row]


@pytest.mark.parametrize("table_cells", [0, 10**6])
@given(own=OWN)
def test_nth_outside_counts_the_items_that_are_left(table_cells: int, own: list[set[int]]) -> None:
    lengths = np.array([len(items) for items in own])
    flat = np.array([item for items in own for item in sorted(items)], dtype=np.int64)
    left = [[item for item in range(40) if item not in items] for items in own]
    users = np.repeat(np.arange(len(own)), [len(items) for items in left])
    ranks = np.concatenate([np.arange(len(items)) for items in left])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distinct, "TABLE_CELLS", table_cells)
        found = nth_outside(ranks, users, Ragged(flat, lengths), 40)
        columns = nth_outside(ranks[:, None], users, Ragged(flat, lengths), 40)
    assert found.tolist() == [item for items in left for item in items]
    assert columns[:, 0].tolist() == found.tolist()


@given(
    st.lists(st.integers(12, 60), min_size=1, max_size=8), st.integers(1, 12), st.integers(0, 99)
)
def test_distinct_rows(bounds: list[int], columns: int, seed: int) -> None:
    """Distinct, in range, and the same whatever other users are drawn for."""
    streams, users = UserStreams(seed, Role.EVAL_NEGATIVES, 0), np.arange(len(bounds)) * 3
    rows = distinct_rows(np.array(bounds), columns, streams, users)
    for bound, row in zip(bounds, rows.tolist(), strict=True):
        assert len(set(row)) == columns
        assert 0 <= min(row) <= max(row) < bound
    alone = distinct_rows(np.array(bounds[-1:]), columns, streams, users[-1:])
    assert alone[0].tolist() == rows[-1].tolist()


def test_repeated_numbers_are_passed_over() -> None:
    """The first distinct of the stream's numbers below 30, however many have to be drawn."""
    streams, users = UserStreams(5, Role.EVAL_NEGATIVES, 0), np.arange(40)
    rows = distinct_rows(np.full(40, 30), 15, streams, users)
    long = (streams.uniforms(users, np.full(40, 400)) * 30).astype(int).reshape(40, -1)
    expected = [list(dict.fromkeys(row))[:15] for row in long.tolist()]
    assert rows.tolist() == expected
    assert any(len(set(row[: 15 + distinct.SPARE])) < 15 for row in long.tolist())


def test_too_small_a_bound() -> None:
    with pytest.raises(ValueError, match="cannot draw 4 distinct numbers below 3"):
        distinct_rows(np.array([9, 3]), 4, UserStreams(0, Role.EVAL_NEGATIVES, 0), np.arange(2))
