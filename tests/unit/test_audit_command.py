"""``fedrecgel audit`` on small runs: its files and tables, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from made_up import NUM_USERS, small_config

from conf.tree import ConfigError
from experiments.audit.attributes import cross_validated, read_attributes
from server_app.cli import run_command
from server_app.grid import LocalGrid
from server_app.run import run_server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a small run is that recorded its first round, and one of a method with own tables."""
    made = tmp_path_factory.mktemp("audit")
    run_server(LocalGrid(2), small_config(made, "name=gel", "evaluation.record_uplinks=[1]"))
    words = ("name=tables", "strategy=gpfedrec", "federation.rounds=1")
    run_server(LocalGrid(2), small_config(made, *words))
    return made


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = run_command(["audit", *arguments])
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    return status, error


def users_file(path: Path) -> Path:
    lines = [f"{u + 1}\t{20 + 2 * u}\t{'MF'[u % 2]}\tother" for u in range(NUM_USERS)]
    header = "user_id:token\tage:token\tgender:token\toccupation:token"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_tables_file_and_figure(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, told = str(folder / "runs"), users_file(tmp_path / "x.user")
    words = ["audit", "--run", "gel", "--output", runs, "--users-per-sum", "1,4", "--uploads", "3"]
    assert run_command([*words, "--attributes", str(told)]) == 0
    shown = capsys.readouterr().out
    assert "F1 of items named (chance)" in shown
    assert "most frequent value" in shown
    left = folder / "runs" / "gel"
    assert (left / "audit.png").stat().st_size > 0
    assert (left / "audit.svg").stat().st_size > 0
    content = json.loads((left / "audit.json").read_text())
    found = {
        (one["attack"], one["users"], one["target"]): one
        for one in content["findings"]
        if one["replayed"]
    }
    single = found["direction", 1, "items of any"]
    assert (single["f1"], single["uploads"]) == (1.0, 3)
    assert 0 < single["chance"] < 0.5
    assert found["direction", 4, "items of one"]["f1"] < 1.0
    assert {one["attribute"] for one in content["attributes"]} == {"gender", "age", "occupation"}
    seen = [one for one in content["findings"] if not one["replayed"]]
    assert {one["round"] for one in seen} == {1}
    assert "residual" in content["not_applicable"]


def test_a_run_without_recording_or_replay_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, error = failure(capsys, "--run", "tables", "--output", str(folder / "runs"))
    assert status == 2
    assert "there is nothing to audit: it recorded no uploads" in error
    assert "sends users tensors of their own" in error


def test_without_private_state_only_what_was_recorded_is_judged(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stores of nodes are gone: recorded uploads of two nodes remain, and it is said."""
    copy = tmp_path / "runs" / "copy"
    shutil.copytree(folder / "runs" / "gel", copy)
    for store in copy.rglob("*.sqlite*"):
        store.unlink()
    words = ["audit", "--run", "copy", "--output", str(tmp_path / "runs"), "--attacks", "direction"]
    assert run_command(words) == 0
    assert "nothing replayed" in capsys.readouterr().out
    shutil.rmtree(copy / "uplinks")
    status, error = failure(capsys, "--run", "copy", "--output", str(tmp_path / "runs"))
    assert status == 2
    assert "the private state of the run's users" in error


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--users-per-sum", "1,x"), "must be numbers"),
        (("--users-per-sum", "0"), "must be numbers"),
        (("--users-per-sum", "25"), "the run has 24 users"),
        (("--attacks", "guess"), "'guess' is not one of"),
        (("--attributes", "/nowhere.user"), "No such file"),
    ],
)
def test_wrong_options_are_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, str], text: str
) -> None:
    runs = ("--run", "gel", "--output", str(folder / "runs"), "--attacks", "presence")
    status, error = failure(capsys, *runs, *words)
    assert status == 2
    assert text in error


def test_a_deployments_run_says_why_not(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "runs" / "deployed"
    shutil.copytree(folder / "runs" / "tables", copy)
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(text.replace("grid: ray", "grid: deployment"))
    assert text != (copy / "config.yaml").read_text()
    status, error = failure(capsys, "--run", "deployed", "--output", str(tmp_path / "runs"))
    assert status == 2
    assert "a deployment's uploads are not recorded" in error


# ---- attributes ---------------------------------------------------------------------------
def test_an_attribute_that_shows_is_found_and_one_that_does_not_is_not() -> None:
    rng = np.random.default_rng(0)
    said = ["a" if u % 4 else "b" for u in range(200)]
    shift_U = np.array([2.0 if value == "a" else -2.0 for value in said])
    features_UX = rng.normal(size=(200, 5)) + shift_U[:, None]
    found = cross_validated("clear", features_UX, said, seed=0)
    assert (found.majority, found.classes, found.users) == (0.75, 2, 200)
    assert found.accuracy > 0.95
    blind = cross_validated("blind", rng.normal(size=(200, 5)), said, seed=0)
    assert blind.accuracy <= 0.75 + 3 * blind.error


def test_ages_are_bands_and_other_files_are_refused(tmp_path: Path) -> None:
    path = users_file(tmp_path / "x.user")
    found = read_attributes(path)
    # Users 1, 4, 9 and 17 are 20, 26, 36 and 52: below 25, 35, 50, and above.
    assert [found["age"][u] for u in ("1", "4", "9", "17")] == ["0", "1", "2", "3"]
    path.write_text("a\tb\n1\t2\n")
    with pytest.raises(ConfigError, match="needs user_id and"):
        read_attributes(path)
