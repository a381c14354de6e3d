"""Plots of growth: slopes and the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import plot

PNG = b"\x89PNG\r\n\x1a\n"


def test_slope_is_the_exponent_of_the_last_two_points() -> None:
    assert plot.slope([1, 2, 20], [7, 3, 300]) == pytest.approx(2.0)
    assert plot.slope([1, 10], [5, 5]) == pytest.approx(0.0)


@pytest.mark.parametrize(("xs", "ys"), [([1.0], [1.0]), ([1.0, 2.0], [0.0, 1.0])])
def test_slope_needs_two_positive_points(xs: list[float], ys: list[float]) -> None:
    with pytest.raises(ValueError, match="two points of positive values"):
        plot.slope(xs, ys)


def test_the_same_panels_give_the_same_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curves = [plot.Curve("a", [1, 10, 100], [1, 2, 3]), plot.Curve("b", [1, 10], [3, 1])]
    panels = [[plot.Panel("users", "time (s)", curves)]]
    for name in ("one.png", "two.png"):
        plot.save(tmp_path / name, "Growth", panels)
    first, second = ((tmp_path / name).read_bytes() for name in ("one.png", "two.png"))
    assert first == second
    assert first.startswith(PNG)
