"""The page of federated beside central: what was chosen, by which figure, and the ratio."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from left_run import left_by_a_run

from benchmarks.beyond_log import Log
from benchmarks.beyond_page import beyond_page
from benchmarks.beyond_trials import (
    CentralTrial,
    FederatedTrial,
    Found,
    central_trials,
    fedials_trials,
)
from benchmarks.results_cells import DataSource, ReferenceCell, RunCell
from server_app.references.rows import SELECTION
from server_app.report import SHOWN

SOURCE = DataSource("ml_100k")


def ease(l2: float) -> CentralTrial:
    return CentralTrial(SOURCE, "ease", (("l2", l2),))


def test_the_best_by_validation_is_chosen_and_the_earlier_of_equals(tmp_path: Path) -> None:
    log = Log(tmp_path / "search.json")
    for l2, value in ((50.0, 0.1), (100.0, 0.3), (200.0, 0.3)):
        log.note(ease(l2), Found(value, 1.0, 2.0))
    log.note(CentralTrial(SOURCE, "popularity", ()), Found(0.2, 1.0, 2.0))
    log.note(FederatedTrial(SOURCE, "fedease", ("strategy.l2=5",)), Found(0.9, 1.0, 2.0))
    again = Log(tmp_path / "search.json")
    assert again.has(ease(50.0))
    assert not again.has(ease(51.0))
    assert again.best(SOURCE, "central ease") == ("central ease l2=100.0", 0.3, 3)
    assert again.chosen_references(SOURCE) == {"ease": {"l2": 100.0}, "popularity": {}}
    with pytest.raises(ValueError, match="no trial of central bpr on ml_100k"):
        again.best(SOURCE, "central bpr")


def test_no_test_figure_is_kept(tmp_path: Path) -> None:
    Log(tmp_path / "search.json").note(ease(1.0), Found(0.25, 1.24, 3.0))
    kept = json.loads((tmp_path / "search.json").read_text())
    of = {"validation": 0.25, "seconds": 1.2, "peak_mb": 3, "settings": {"l2": 1.0}}
    assert kept == {"ml_100k": {"central ease l2=1.0": of}}


def test_references_are_searched_at_least_in_their_own_grids() -> None:
    keys = [trial.key for trial in central_trials(SOURCE)]
    assert len(keys) == len(set(keys))
    assert {f"central ease l2={l2}" for l2 in (20.0, 50.0, 2000.0)} <= set(keys)
    assert sum(key.startswith("central item_knn") for key in keys) == 12


def test_one_penalty_for_users_and_items() -> None:
    """λ = 3 over 300 users is 0.01 a user."""
    first = next(iter(fedials_trials(SOURCE, 300)))
    assert first.overrides[-2:] == ("strategy.user_reg=3", "strategy.item_reg=0.010000")


def test_rows_ratio_and_costs_by_hand(tmp_path: Path) -> None:
    """0.24 of 0.25 is 96 %, and of 0.10, which is ahead on validation, 240 %.

    4 and 6 MB at two nodes are 2 and 3; sqrt(.24 .76 / 100) = 4.27 %.
    """
    run = RunCell(SOURCE, "strict", 0, tmp_path, "fedease", "best_ml_100k")
    seconds = {f"seconds_{part}": 0.5 for part in ("train", "messages", "server", "other")}
    totals = seconds | {"bytes_up": 4e6, "bytes_down": 6e6}
    counts = dict.fromkeys(SHOWN, 100.0)
    left_by_a_run(run, 0.24, num_users=10, num_items=20, counts=counts, totals=totals)
    given = ReferenceCell(SOURCE, "strict", 0, tmp_path, {"ease": {}})
    other = ReferenceCell(SOURCE, "strict", 0, tmp_path)
    for cell, rows in ((given, {"ease": 0.25}), (other, {"ease": 0.8, "bpr": 0.1})):
        content = [
            {"method": m, "title": m, "metrics": dict.fromkeys(SHOWN, v) | {SELECTION: 1 - v}}
            for m, v in rows.items()
        ]
        cell.path.write_text(json.dumps({"rows": content}))
    log = Log(tmp_path / "search.json")
    log.note(ease(100.0), Found(0.5, 1.0, 2000.0))
    lines = beyond_page([run, given, other], "the command", log).splitlines()
    figures = " | ".join(["{0}"] * 4)
    cost = "1 × 100% | 2 | 3 | 2"
    cells = [
        f"| *ease* | reference | 1 | {figures.format('25.00')} | 100.0 % | – | – | – | – |",
        f"| `fedease` | **preset** | 1 | {figures.format('24.00')} | 96.0 % | {cost} |",
        f"| *bpr* | reference | 1 | {figures.format('10.00')} | 40.0 % | – | – | – | – |",
    ]
    rows = [line for line in lines if line.startswith("| ")]
    assert rows[1] == (
        "| ml_100k | 10 × 20 | `fedease` | 24.00 | *ease* | 25.00 | 96.0 % "
        "| 240.0 % (*bpr*) | `fedease` 96.0 % |"
    )
    assert rows[3:6] == cells
    assert "Standard error of HR@10 full of one seed, over users: 4.27." in lines
    assert "* `central ease l2=100.0`: 50.00, best of 1, peak memory 2.0 GB" in lines
    assert "the command" in lines
