"""Figures: drawn without a warning, the same bytes each time, with what they have to say."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib import rcParams
from matplotlib.figure import Figure

from experiments.figures import style
from experiments.figures.communication import CommunicationCurve, accuracy_by_bytes, in_units
from experiments.figures.curves import LearningCurve, LearningCurves, learning_curves, spread
from experiments.figures.drift import ItemDrift, item_drift
from experiments.figures.grouped import GroupedAccuracy, GroupSeries, accuracy_by_group
from experiments.figures.sensitivity import Sensitivity, places, rho_sensitivity
from experiments.figures.surface import Surface, loss_landscape, shared_levels

ROUNDS = np.array([10, 20, 30])
METRIC = "HR@10, 99 sampled, test"
PNG = b"\x89PNG\r\n\x1a\n"


def curves() -> Figure:
    seeds = np.array([[0.1, 0.2, 0.3], [0.2, 0.3, np.nan]])
    two = [LearningCurve("one", ROUNDS, seeds), LearningCurve("other", ROUNDS, seeds[:1] / 2)]
    return learning_curves(LearningCurves(METRIC, two, popularity=0.25))


def radii() -> Figure:
    rho, values = np.array([0.0, 0.01, 0.1]), np.array([[0.5, 0.6], [0.6, np.nan], [0.4, 0.5]])
    panels = [Sensitivity(name, rho, values) for name in ("ρ_shared", "ρ_private")]
    return rho_sensitivity(panels, METRIC, popularity=0.4)


def surfaces() -> Figure:
    steps = np.linspace(-1, 1, 5)
    bowl = steps[:, None] ** 2 + steps**2
    return loss_landscape([Surface("one", steps, bowl, "note"), Surface("other", steps, 2 * bowl)])


def drifts() -> Figure:
    mean = np.array([0.7, 0.9, 1.0])  # at 1 nothing moved: no place on a logarithmic scale
    deciles = np.repeat(mean[:, None], 9, axis=1)
    runs = [ItemDrift(name, ROUNDS, mean, 1 - mean, deciles, 1 - mean) for name in ("one", "two")]
    return item_drift(runs)


def groups() -> Figure:
    series = [GroupSeries(n, np.array([0.1, np.nan]), np.array([0.01, np.nan])) for n in "ab"]
    return accuracy_by_group([GroupedAccuracy(METRIC, ["few", "many"], np.array([3, 0]), series)])


def traffic() -> Figure:
    curve = CommunicationCurve("one", np.array([1e5, 1e6, 2e7]), np.array([0.1, 0.2, 0.3]))
    return accuracy_by_bytes([curve], METRIC, popularity=0.25)


FIGURES: dict[str, tuple[Callable[[], Figure], tuple[str, ...]]] = {
    "curves": (
        curves,
        ("one (2 seeds)", "other", "popularity", "round", "HR@10 (%)", "99 sampled, test", "least"),
    ),
    "radii": (radii, ("shared", "private", "0.01", "0.1", "//", "mean ± sd", "HR@10 (%)")),
    "surfaces": (surfaces, ("one", "note", "other", "α (filter norms)", "training loss a user")),
    "drifts": (
        drifts,
        ("1 − cosine", "variance of", "a coordinate", "relative step", "round", "two"),
    ),
    "groups": (groups, ("few", "3 users", "0 users", "standard error", "HR@10 (%)", "a", "b")),
    "traffic": (traffic, ("bytes up and down a user", "1 MB", "popularity", "one")),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure(name: str, tmp_path: Path) -> None:
    draw, labels = FIGURES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = [style.save(draw(), tmp_path / stem) for stem in ("one", "two")]
    (png, svg), (same_png, same_svg) = paths
    assert png.read_bytes().startswith(PNG)
    assert png.read_bytes() == same_png.read_bytes()
    assert svg.read_bytes() == same_svg.read_bytes()
    text = svg.read_text("utf-8")
    assert "<dc:date>" not in text
    # Text is drawn as outlines, with a comment before each.
    shown = " ".join(re.findall(r"<!-- (.*?) -->", text, flags=re.S))
    for label in labels:
        assert label in shown, label


def test_settings_stay_with_the_figures() -> None:
    before = dict(rcParams)
    style.encoded(curves())
    assert dict(rcParams) == before


def test_series_differ_in_more_than_colour() -> None:
    looks = [style.look(number) for number in range(21)]
    assert len({(look.line, look.marker) for look in looks[:7]}) == 7
    assert len(set(looks)) == 21


def test_a_figure_of_one_seed_tells_of_no_band(tmp_path: Path) -> None:
    alone = LearningCurve("one", ROUNDS, np.array([[0.1, 0.2, 0.3]]))
    _, svg = style.save(learning_curves(LearningCurves(METRIC, [alone])), tmp_path / "x")
    text = svg.read_text("utf-8")
    assert "band" not in text
    assert "popularity" not in text


def test_a_panel_without_values_is_left_out(tmp_path: Path) -> None:
    mean, nothing = np.array([0.7, 0.8, 0.9]), np.full(3, np.nan)
    run = ItemDrift("one", ROUNDS, mean, nothing, np.repeat(mean[:, None], 9, axis=1), 1 - mean)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, svg = style.save(item_drift([run]), tmp_path / "x")
    text = svg.read_text("utf-8")
    assert "relative step" in text
    assert "coordinate" not in text


def test_bands() -> None:
    seeds = np.array([[0.1, 0.4], [0.2, np.nan], [0.6, np.nan]])
    low, high = spread(seeds, "range")
    assert (low[0], high[0]) == (0.1, 0.6)
    assert np.isnan([low[1], high[1]]).all()
    low, high = spread(seeds, "sd")
    # mean 0.3, deviations -0.2, -0.1, 0.3: variance 0.14 / 2
    assert (low[0], high[0]) == pytest.approx((0.3 - 0.07**0.5, 0.3 + 0.07**0.5))


def test_zero_has_a_place_before_the_least_radius() -> None:
    positive = np.array([0.01, 0.1])
    assert places(np.array([0.0, 0.01, 0.1]), positive).tolist() == [-2.5, -2.0, -1.0]


def test_levels_span_all_surfaces() -> None:
    levels = shared_levels([np.array([[1.0, 2.0]]), np.array([[3.0, 5.0]])])
    assert (levels[0], levels[-1]) == (1.0, 5.0)
    assert (np.diff(levels) > 0).all()
    assert (np.diff(shared_levels([np.ones((2, 2))])) > 0).all()


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1 B"), (1000.0, "1 kB"), (2.5e6, "2.5 MB"), (1e19, "10000 PB")]
)
def test_bytes_in_units(value: float, text: str) -> None:
    assert in_units(value) == text
