"""``fedrecgel reference``: the split of a federated run, and what is said of missing packages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_run

from client_app.data import load_dataset
from client_app.engine import draw_epochs
from conf.build import ConfigError
from conf.tree import build_strategy
from server_app.cli import run_command
from server_app.cli_reference import sorted_arguments
from server_app.cli_reference_rows import _draw, reference_rows, training_matrix
from server_app.grid import LocalGrid
from server_app.references import METHODS
from server_app.references.rows import SELECTION
from server_app.results import load_result
from server_app.run import run_server


@pytest.mark.parametrize(
    "overrides",
    [
        ("protocol=strict", "federation.num_nodes=3", "seed=4", "evaluation.users=13"),
        ("protocol=paper", "federation.num_nodes=2", "protocol.num_candidates=10"),
    ],
)
def test_popularity_is_the_popularity_row_of_a_federated_run(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    cfg = tiny_run.config(tmp_path, "federation.rounds=1", "strategy=fedmf", *overrides)
    run_server(LocalGrid(cfg.federation.num_nodes), cfg)
    federated = load_result(tmp_path / "runs" / "tiny")
    (row,) = reference_rows(cfg, ["popularity"])
    assert federated.popularity is not None
    assert len(federated.popularity) > 24
    assert row.metrics == federated.popularity
    assert {n: c for n, c in row.counts.items() if n in federated.counts} == federated.counts


def test_training_matrix_has_every_training_row_and_nothing_held_out(tmp_path: Path) -> None:
    dataset = load_dataset(tiny_run.config(tmp_path))
    train_UI = training_matrix(dataset)
    assert train_UI.sum() == len(dataset.train_items)
    assert np.array_equal(train_UI.sum(axis=0), dataset.item_counts(np.arange(20)))
    held = dataset.heldout(np.arange(20))
    users, places = np.nonzero(held >= 0)
    assert train_UI[users, held[users, places]].sum() == 0


def test_an_epoch_draws_what_a_round_draws(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path, "strategy=fedncf", "seed=3")
    dataset, users = load_dataset(cfg), np.arange(20)
    rounds = draw_epochs(build_strategy(cfg), dataset, cfg, users, 7)
    pairs = _draw(cfg, dataset)(3, 7, cfg.strategy.num_negatives)
    for user, (samples,) in enumerate(rounds):
        own = pairs.users_S == user
        assert np.array_equal(pairs.items_S[own], samples.items_S)
        assert np.array_equal(pairs.labels_S[own], samples.labels_S)


def test_tuning_reports_the_settings_that_validation_prefers(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path)
    (row,) = reference_rows(cfg, ["ease"], tune=True)
    assert [trial.settings["l2"] for trial in row.trials] == [50, 100, 200, 500, 1000, 2000]
    best = max(row.trials, key=lambda trial: trial.validation)
    assert (row.settings, row.metrics[SELECTION]) == (best.settings, best.validation)
    (plain,) = reference_rows(cfg, ["ease"], settings={"ease": {"l2": best.settings["l2"]}})
    assert (plain.metrics, plain.trials) == (row.metrics, ())


def test_tuning_keeps_a_setting_that_is_given(tmp_path: Path) -> None:
    given = {"item_knn": {"neighbours": 3}}
    (row,) = reference_rows(tiny_run.config(tmp_path), ["item_knn"], settings=given, tune=True)
    assert [t.settings for t in row.trials] == [
        {"neighbours": 3, "shrinkage": shrinkage} for shrinkage in (0.0, 10.0, 100.0)
    ]


def test_tuning_needs_validation_items(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path, "protocol=paper")
    with pytest.raises(ConfigError, match="choose under protocol=strict"):
        reference_rows(cfg, ["ease"], tune=True)


def command(folder: Path, *arguments: str) -> int:
    tiny_run.config(folder)
    given = ["dataset=file", f"dataset.path={folder / 'ratings.csv'}", f"cache={folder / 'cache'}"]
    return run_command(["reference", *arguments, *given, "protocol.num_candidates=10"])


def test_all_goes_on_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "implicit", None)
    out = tmp_path / "rows.json"
    assert command(tmp_path, "all", "neumf.epochs=1", "--out", str(out)) == 0
    said = capsys.readouterr()
    for name in ("ials", "bpr"):
        assert f"{name}: not installed: pip install fedrecgel[references]" in said.err
    assert "file, protocol strict" in said.out
    rows = json.loads(out.read_text())["references"]
    assert [row["method"] for row in rows] == ["popularity", "item_knn", "ease", "neumf"]


def test_one_method_without_the_library_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "implicit", None)
    assert command(tmp_path, "popularity", "ials") == 1
    said = capsys.readouterr()
    assert "pip install fedrecgel[references]" in said.err
    assert not said.out
    assert command(tmp_path, "ials", "ials.implementation=own", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["implementation"] == "own (torch)"
    assert row["settings"]["implementation"] == "own"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "choose all or some of popularity"),
        (["all", "ease"], "name each method once"),
        (["ease", "ease.lambda=3"], "unknown key ease.lambda"),
        (["ease", "ease.l2=many"], "ease.l2: expected a number"),
        (["popularity", "ease.l2=3"], "unknown key ease"),
        (["ease", "seed=1", "--seed", "2"], "seed is given twice"),
        (["ease", "--out", "nowhere/at/all.json"], "there is no folder"),
    ],
)
def test_wrong_command_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert command(tmp_path, *arguments) == 2
    assert said in capsys.readouterr().err


def test_arguments_are_sorted_by_what_they_are_about() -> None:
    given = ["ease", "seed=3", "ease.l2=2.5", "ials.implementation=own", "dataset.path=x"]
    assert sorted_arguments(given, tuple(METHODS)) == (
        ["ease"],
        ["seed=3", "dataset.path=x"],
        {"ease": {"l2": 2.5}, "ials": {"implementation": "own"}},
    )
