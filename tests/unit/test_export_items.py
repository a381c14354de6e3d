"""``fedrecgel export-items``: the selected round's item tables, with ids and titles."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny_run

from server_app import cli_export
from server_app.checkpoint import load_checkpoint
from server_app.cli import run_command
from server_app.grid import LocalGrid
from server_app.run import run_server

SETTINGS = ["strategy=fedncf", "model=neumf", "federation.rounds=3", "evaluation.every=1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("finished")
    run_server(LocalGrid(2), tiny_run.config(place, *SETTINGS, "federation.num_nodes=2"))
    return place / "runs" / "tiny"


def test_npz_holds_the_selected_rounds_tables(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "items.npz"
    assert run_command(["export-items", "--run", str(finished), "--out", str(out)]) == 0
    checkpoint = load_checkpoint(finished)
    tables = tiny_run.config(tmp_path, *SETTINGS).model.item_tables
    with np.load(out) as found:
        assert set(found.files) == {"item_id", "title", *tables}
        # Every item of the file occurs, numbered in the order of the prepared data.
        assert sorted(map(int, found["item_id"])) == list(range(tiny_run.NUM_ITEMS))
        for name in tables:
            assert np.array_equal(found[name], checkpoint.best[name].numpy())
    assert f"40 items of round {checkpoint.selection.round}" in capsys.readouterr().out
    assert [file.name for file in tmp_path.iterdir() if "items" in file.name] == ["items.npz"]


def test_ids_and_titles_of_a_catalogue(finished: Path, tmp_path: Path) -> None:
    catalogue, out = tmp_path / "catalogue.tsv", tmp_path / "items.npz"
    catalogue.write_text("".join(f"id{i}\ttitle {i}\n" for i in range(tiny_run.NUM_ITEMS)))
    arguments = ["export-items", "--run", str(finished), "--out", str(out)]
    assert run_command([*arguments, "--catalogue", str(catalogue)]) == 0
    with np.load(out) as found:
        assert (found["item_id"][7], found["title"][7]) == ("id7", "title 7")


def test_a_deployed_run_asks_for_the_catalogue(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    text = (run / "config.yaml").read_text()
    deployed, places = re.subn(r"(?m)^  grid: \w+$", "  grid: deployment", text)
    assert places == 1
    (run / "config.yaml").write_text(deployed)
    out = tmp_path / "items.npz"
    assert run_command(["export-items", "--run", str(run), "--out", str(out)]) == 2
    assert "--catalogue prepared/catalogue.tsv" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("target", "words"),
    [("items.csv", "must end with .npz or .parquet"), ("nowhere/items.npz", "there is no folder")],
)
def test_targets_that_cannot_be(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, words: str
) -> None:
    arguments = ["export-items", "--run", str(finished), "--out", str(tmp_path / target)]
    assert run_command(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_catalogue_of_other_items_is_refused(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalogue = tmp_path / "catalogue.tsv"
    catalogue.write_text("a\t\nb\t\n")
    arguments = ["export-items", "--run", str(finished), "--out", str(tmp_path / "items.npz")]
    assert run_command([*arguments, "--catalogue", str(catalogue)]) == 1
    assert "the catalogue has 2 items" in capsys.readouterr().err


def test_parquet_without_pyarrow_names_the_extra(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli_export.importlib.util, "find_spec", lambda name: None)
    arguments = ["export-items", "--run", str(finished), "--out", str(tmp_path / "items.parquet")]
    assert run_command(arguments) == 2
    assert "fedrecgel[parquet]" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is an extra")
def test_parquet_holds_a_row_an_item(finished: Path, tmp_path: Path) -> None:
    import pandas as pd

    out = tmp_path / "items.parquet"
    assert run_command(["export-items", "--run", str(finished), "--out", str(out)]) == 0
    table, checkpoint = pd.read_parquet(out), load_checkpoint(finished)
    assert len(table) == tiny_run.NUM_ITEMS
    for name in tiny_run.config(tmp_path, *SETTINGS).model.item_tables:
        assert np.array_equal(np.stack(table[name].to_list()), checkpoint.best[name].numpy())


@pytest.mark.parametrize(
    ("strategy", "own"), [("cofedrec", True), ("fedrap", True), ("fcf", False)]
)
def test_item_parameters_of_single_users_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], strategy: str, own: bool
) -> None:
    settings = (f"strategy={strategy}", "federation.rounds=1", "federation.num_nodes=1")
    run_server(LocalGrid(1), tiny_run.config(tmp_path, *settings))
    arguments = ["--run", str(tmp_path / "runs" / "tiny"), "--out", str(tmp_path / "items.npz")]
    assert run_command(["export-items", *arguments]) == 0
    assert (cli_export.OWN_ITEMS in capsys.readouterr().out) == own
