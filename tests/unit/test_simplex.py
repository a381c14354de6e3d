"""Projection onto the simplex: by hand, by its optimality conditions, and degenerate cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.simplex import project_rows

finite = st.floats(-1e3, 1e3, allow_nan=False)
# Entries of at most 1e3 and their sums over six round at 6e3 · 1e-16 = 6e-13.
EXACT = 1e-11


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        # On the simplex already.
        ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
        # All stay positive: θ = (0.9 + 0.6 + 0.3 - 1) / 3 = 0.8 / 3.
        ([0.9, 0.6, 0.3], [0.9 - 0.8 / 3, 0.6 - 0.8 / 3, 0.3 - 0.8 / 3]),
        # The last falls out, 0 < (1 + 0.6 - 1) / 2 = 0.3 = θ: 0.7 and 0.3.
        ([1.0, 0.6, 0.0], [0.7, 0.3, 0.0]),
        # One entry more than 1 above the others has all.
        ([0.0, 5.0, 3.9], [0.0, 1.0, 0.0]),
        ([-7.0], [1.0]),
        ([2.0, 2.0], [0.5, 0.5]),
    ],
)
def test_by_hand(point: list[float], expected: list[float]) -> None:
    got = project_rows(np.array([point, point]))
    np.testing.assert_allclose(got, [expected, expected], atol=1e-15)


@settings(max_examples=100, deadline=None)
@given(st.lists(finite, min_size=1, max_size=6), st.data())
def test_nearest_point(point: list[float], data: st.DataObject) -> None:
    """On the simplex, and no nearer to v from there towards any corner: (v - w) · (e_j - w) ≤ 0.

    That is the optimality condition of a projection onto a convex set, on its corners.
    """
    v = np.array(point)
    (w,) = project_rows(v[None])
    assert (w >= 0).all()
    assert w.sum() == pytest.approx(1, abs=EXACT)
    scale = 1 + np.abs(v).max()
    corner = data.draw(st.integers(0, len(v) - 1))
    assert (v - w) @ (np.eye(len(v))[corner] - w) <= EXACT * scale


def test_moving_all_entries_alike_changes_nothing() -> None:
    v = np.array([[0.4, -0.2, 0.9, 0.1]])
    np.testing.assert_allclose(project_rows(v + 1e6), project_rows(v), atol=1e-9)


@pytest.mark.parametrize("bad", [np.full((1, 2), np.nan), np.full((1, 2), np.inf), np.ones((1, 0))])
def test_nothing_to_project(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="finite entries, at least one"):
        project_rows(bad)
