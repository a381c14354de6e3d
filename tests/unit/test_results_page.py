"""The page of results comes from what runs left, and a completed run is not made again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from left_run import left_by_a_run

from benchmarks.results_cells import DataSource, ReferenceCell, RunCell, SettingsCell
from benchmarks.results_page import page
from conf.tree import Config
from server_app.errors import RoundError
from server_app.references.rows import ReferenceRow
from server_app.report import SHOWN

SOURCE = DataSource("ml_100k")


def test_rows_by_hand_best_first(tmp_path: Path) -> None:
    """0.2 and 0.3 are 25 % with a sample deviation of 0.1 / sqrt(2) = 7.07; 0.26 is above."""
    cells = [RunCell(SOURCE, "strict", seed, tmp_path, "fedmf") for seed in (0, 1)]
    for cell, value in zip(cells, (0.2, 0.3), strict=True):
        left_by_a_run(cell, value)
    reference = ReferenceCell(SOURCE, "strict", 0, tmp_path)
    row = {"title": "Some", "implementation": "own", "metrics": dict.fromkeys(SHOWN, 0.26)}
    reference.path.write_text(json.dumps({"rows": [row]}))
    unmade = RunCell(SOURCE, "strict", 2, tmp_path, "fedmf")
    lines = page([*cells, reference, unmade], "the command").splitlines()
    assert "Not made yet: ml_100k-strict-fedmf-s2." in lines
    assert "the command" in lines
    rows = [line for line in lines if line.startswith("|")][2:]
    assert rows == [
        "| *Some* (reference, own) | 1 | 26.00 | 26.00 | 26.00 | 26.00 |",
        "| `fedmf` | 2 | 25.00 ± 7.07 | 25.00 ± 7.07 | 25.00 ± 7.07 | 25.00 ± 7.07 |",
    ]


def test_only_an_equal_completed_run_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr("server_app.run.run_server", lambda grid, cfg: made.append(cfg))
    cell = RunCell(SOURCE, "strict", 0, tmp_path, "fedmf")
    cell.make()
    cell.make()
    assert len(made) == 1
    dataclasses.replace(cell, strategy="fedavg").make()
    assert [cfg.strategy_name for cfg in made] == ["fedmf", "fedavg"]
    assert (made[0].evaluation.every, made[0].federation.grid) == (10, "local")
    cell._stamp.write_text("another configuration")
    cell.make()
    assert len(made) == 3


def test_a_run_that_fails_in_a_round_is_noted_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fails(grid: object, cfg: Config) -> None:
        tried.append(cfg)
        raise RoundError("round 7: infinite")

    monkeypatch.setattr("server_app.run.run_server", fails)
    cell = RunCell(SOURCE, "strict", 0, tmp_path, "fedmf")
    for _ in range(2):
        with pytest.raises(RoundError, match="round 7"):
            cell.make()
    assert (len(tried), cell.is_made) == (1, False)
    lines = page([cell], "").splitlines()
    assert "Failed: ml_100k-strict-fedmf-s0, round 7: infinite" in lines
    assert not any("Not made yet" in line for line in lines)


def test_references_are_fitted_with_the_settings_chosen_for_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def rows(cfg: Config, methods: list[str], **rest: object) -> list[ReferenceRow]:
        asked.append((cfg.protocol.name, cfg.seed, rest["tune"], rest["settings"]))
        return [made_up_row(l2=200.0)] if rest["tune"] else []

    monkeypatch.setattr("benchmarks.results_cells.reference_rows", rows)
    chosen = {"ease": {"l2": 200.0}}
    cell = ReferenceCell(SOURCE, "paper", 2, tmp_path)
    for _ in range(2):
        SettingsCell(SOURCE, tmp_path).make()
        cell.make()
    assert asked == [("strict", 0, True, {}), ("paper", 2, False, chosen)]
    settings = SettingsCell(SOURCE, tmp_path).path
    settings.write_text(settings.read_text().replace("200.0", "500.0"))
    cell.make()
    assert asked[2:] == [("paper", 2, False, {"ease": {"l2": 500.0}})]


def made_up_row(**settings: float) -> ReferenceRow:
    return ReferenceRow("ease", "", "own", settings, "", "", 0, 1, 1, {}, {}, 0.0, 0.0)


def test_the_papers_experiment_is_taken_where_there_is_one() -> None:
    data = DataSource.parsed("filmtrust=/somewhere/ratings.txt")
    assert data.shown == "filmtrust=ratings.txt"
    assert data.overrides("paper") == ["experiment=paper_filmtrust", f"dataset.path={data.path}"]
    assert data.overrides("strict")[:2] == ["protocol=strict", "dataset=filmtrust"]


def test_no_methods_given_are_none_and_not_those_chosen_for_the_data(tmp_path: Path) -> None:
    """There is no file of chosen settings here, and none is asked for."""
    cell = ReferenceCell(SOURCE, "strict", 0, tmp_path, {})
    cell.make()
    assert cell.rows() == []
