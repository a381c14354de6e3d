"""The synthetic data set: what a user has, what it depends on, how it is split and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_app import data, synthetic_split
from client_app.data import load_dataset
from client_app.errors import DataError
from client_app.synthetic import draw_users, lengths, make_catalogue
from conf.compose import compose
from conf.tree import Config, ConfigError, SyntheticConfig
from models.rng import Role, UserStreams

SMALL = SyntheticConfig(users=300, items=120, clusters=6, median_rows=9.0)


def config(folder: Path, *overrides: str) -> Config:
    made = {"users": 300, "items": 120, "clusters": 6, "median_rows": 9.0}
    chosen = [f"dataset.synthetic.{key}={value}" for key, value in made.items()]
    return compose(
        ["dataset=synthetic", *chosen, "protocol.num_candidates=30", f"cache={folder}", *overrides]
    )


@settings(max_examples=30)
@given(
    st.integers(0, 99), st.floats(0, 0.97), st.integers(1, 20), st.floats(0, 1.5), st.integers(3, 9)
)
def test_items_of_users(
    seed: int, taste: float, clusters: int, exponent: float, least: int
) -> None:
    made = replace(
        SMALL, seed=seed, taste=taste, clusters=clusters, exponent=exponent, least_rows=least
    )
    users = np.arange(40)
    drawn = draw_users(made, make_catalogue(made), users)
    assert drawn.lengths_U.min() >= least and drawn.lengths_U.max() <= 30
    assert np.array_equal(
        drawn.lengths_U, lengths(made, UserStreams(seed, Role.SYNTHETIC, 1), users)
    )
    assert drawn.values.min() >= 0 and drawn.values.max() < made.items
    for start, length in zip(drawn.starts, drawn.lengths_U, strict=True):
        assert len(set(drawn.values[start : start + length].tolist())) == length


@pytest.mark.filterwarnings("error")
def test_the_smallest_taste_is_nearly_none() -> None:
    none, least = replace(SMALL, taste=0.0), replace(SMALL, taste=5e-324)
    without, nearly = (
        draw_users(made, make_catalogue(made), np.arange(300)).values for made in (none, least)
    )
    assert np.array_equal(without, nearly)


def test_a_user_does_not_depend_on_the_others() -> None:
    catalogue = make_catalogue(SMALL)
    everyone = draw_users(SMALL, catalogue, np.arange(300))
    some = draw_users(SMALL, catalogue, np.array([7, 299]))
    parts = np.split(everyone.values, everyone.starts[1:])
    assert np.array_equal(some.values, np.concatenate([parts[7], parts[299]]))


def test_the_catalogue_by_hand() -> None:
    """Cluster numbers and shares of weights: within each cluster they end at the next number."""
    catalogue = make_catalogue(replace(SMALL, items=6, clusters=2, exponent=1.0))
    assert sorted(catalogue.order_I.tolist()) == list(range(6))
    assert (np.diff(catalogue.cumulative_I) > 0).all()
    assert catalogue.cumulative_I[2] == 1.0 and catalogue.cumulative_I[5] == 2.0
    shares = np.diff(catalogue.overall_I, prepend=0.0)
    assert np.allclose(sorted(shares * 2.45)[::-1], 1 / np.arange(1, 7))  # 2.45 = sum of 1/r
    inside = np.diff(catalogue.cumulative_I[:3], prepend=0.0)
    assert np.allclose(inside, shares[:3] / shares[:3].sum())
    assert (np.diff(inside) < 0).all()


def test_popularity_falls_by_a_power_law() -> None:
    """Without taste an item of rank r has r^-1 of the first one's interactions, but for repeats."""
    made = SyntheticConfig(20_000, 2_000, 6.0, 0.1, 5, exponent=1.0, clusters=4, taste=0.0)
    counts = np.bincount(draw_users(made, make_catalogue(made), np.arange(20_000)).values)
    top = np.sort(counts)[::-1]
    ranks = np.arange(20, 400)
    slope = np.polyfit(np.log(ranks), np.log(top[ranks - 1]), 1)[0]
    assert slope == pytest.approx(-1.0, abs=0.1)


@pytest.mark.parametrize("protocol", ["strict", "paper"])
def test_the_split(tmp_path: Path, protocol: str) -> None:
    """Latest interaction for the test, the one before for validation, the others train."""
    chosen = (f"protocol={protocol}", "protocol.candidates=derived")
    cfg = config(tmp_path, *chosen)
    found, made = load_dataset(cfg), cfg.dataset.synthetic
    assert made is not None
    drawn = draw_users(made, make_catalogue(made), np.arange(made.users))
    for user, start in enumerate(drawn.starts):
        mine = drawn.values[start : start + drawn.lengths_U[user]].tolist()
        held = mine[-2:] if cfg.protocol.validation else mine[-1:]
        assert found.train_of(user).tolist() == sorted(mine[: -len(held)])
        assert found.test_U[user] == mine[-1]
        assert found.validation_U[user] == (mine[-2] if cfg.protocol.validation else -1)


def test_candidates_are_drawn_when_asked_for_and_for_anyone_alike(tmp_path: Path) -> None:
    found, users = load_dataset(config(tmp_path)), np.array([5, 6, 250])
    for split in ("test", "validation"):
        rows = found.candidates(split, users)
        assert rows.shape == (3, 30)
        for user, row in zip(users, rows, strict=True):
            own = {*found.train_of(user).tolist(), found.test_U[user], found.validation_U[user]}
            assert len(set(row.tolist()) - own) == 30
            assert np.array_equal(found.candidates(split, np.array([user]))[0], row)
    other = found.candidates("validation", users)
    assert not np.array_equal(found.candidates("test", users), other)


def test_stored_candidates_are_those_that_would_be_drawn(tmp_path: Path) -> None:
    """A file's candidates are stored: drawing them from its arrays gives the same."""
    lines = [f"{u},{i},1,{t}" for u in range(9) for t, i in enumerate(range(u, u + 18, 2))]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    chosen = ["dataset=file", f"dataset.path={path}", "protocol.num_candidates=4"]
    stored = load_dataset(compose([*chosen, f"cache={tmp_path}"]))
    empty = np.empty((0, 4), dtype=np.int64)
    drawn = replace(stored, test_candidates_UC=empty, validation_candidates_UC=empty)
    users = np.arange(9)
    for split in ("test", "validation"):
        assert np.array_equal(drawn.candidates(split, users), stored.candidates(split, users))


def test_blocks_and_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_dataset(config(tmp_path / "a"))
    monkeypatch.setattr(synthetic_split, "BLOCK", 7)
    blocks = load_dataset(config(tmp_path / "b"))
    assert blocks.fingerprint == whole.fingerprint
    monkeypatch.setattr(synthetic_split, "prepare_synthetic", None)
    data.open_dataset.cache_clear()
    assert load_dataset(config(tmp_path / "b")).fingerprint == whole.fingerprint


def test_every_parameter_makes_another_data_set(tmp_path: Path) -> None:
    changes = ["users=301", "items=121", "median_rows=10.0", "spread=0.6", "least_rows=6"]
    changes += ["exponent=0.7", "clusters=7", "taste=0.6", "seed=1"]
    found = {load_dataset(config(tmp_path)).fingerprint}
    found |= {load_dataset(config(tmp_path, f"dataset.synthetic.{c}")).fingerprint for c in changes}
    assert len(found) == 1 + len(changes)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("dataset.synthetic.taste=1.0", r"taste must be at least 0 and below 1"),
        ("dataset.synthetic.clusters=121", r"clusters=121 are more than the 120 items"),
        ("dataset.synthetic.users=0", r"users must be at least 1"),
        ("dataset.synthetic.exponent=-1.0", r"exponent must not be negative"),
        ("dataset.path=/data/some.csv", r"is made up: leave dataset\.path away"),
    ],
)
def test_impossible_settings(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("protocol.min_interactions=9", r"least_rows"),
        ("protocol.num_candidates=99", r"raise dataset\.synthetic\.items"),
        ("protocol.candidates=notebook", r"candidates=derived"),
    ],
)
def test_protocols_that_do_not_fit(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_dataset(config(tmp_path, override))
