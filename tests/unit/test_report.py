from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from server_app.errors import ServerError
from server_app.meter import PARTS
from server_app.report import mean_sd, result_table, runs_table, standard_error, time_line
from server_app.results import RunResult, load_result, totals_of
from server_app.tables import lines_of


def result(folder: Path, seed: int = 0, hr: float = 0.5, strategy: str = "fedncf") -> RunResult:
    metrics = {"test/sampled/hr@10": hr, "test/sampled/ndcg@10": hr / 2}
    return RunResult(
        name=f"run{seed}",
        folder=folder,
        dataset="tiny",
        protocol="strict",
        strategy=strategy,
        title="FedNCF",
        model="neumf",
        seed=seed,
        num_users=100,
        num_items=12,
        rounds=10,
        selected_round=7,
        select="best_validation",
        early_stopped=False,
        metrics=metrics,
        counts=dict.fromkeys(metrics, 100.0),
        popularity={"test/sampled/hr@10": 0.25},
    )


def text_of(table: RenderableType, width: int = 240) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_standard_error_of_a_hit_rate() -> None:
    """sqrt(0.5 * 0.5 / 100) = 0.05."""
    assert standard_error(0.5, 100) == pytest.approx(0.05)


def test_a_result_stands_beside_popularity_under_its_protocol(tmp_path: Path) -> None:
    text = text_of(result_table(result(tmp_path)))
    assert "50.00 ± 5.00" in text
    assert "25.00 ± 4.33" in text  # sqrt(0.25 * 0.75 / 100) = 0.0433
    assert "popularity" in text
    assert "protocol strict" in text
    assert "round 7 of 10, best HR@10 on validation" in text


def test_fewer_users_behind_the_figures_are_named(tmp_path: Path) -> None:
    whole = result(tmp_path)
    assert "figures" not in text_of(result_table(whole))
    fewer = replace(whole, counts=dict.fromkeys(whole.metrics, 80.0))
    assert "figures over 80 of 100 users" in text_of(result_table(fewer))
    mixed = replace(whole, counts={**fewer.counts, "test/sampled/hr@10": 90.0})
    assert "figures over 80 to 90 of 100 users" in text_of(result_table(mixed))


def test_the_rounds_time_is_told_by_part(tmp_path: Path) -> None:
    """6 + 1 + 2 + 0.5 + 0.25 + 0.25 s."""
    parts = zip(PARTS, (6, 1, 2, 0.5, 0.25, 0.25), strict=True)
    timed = replace(result(tmp_path), totals={f"seconds_{k}": float(v) for k, v in parts})
    line = (
        "10 rounds in 10.0 s: training 60%, evaluation 10%, messages 20%, server 5%, "
        "checkpoints 2%, other 2%"
    )
    assert time_line(timed) == line
    assert line in text_of(result_table(timed))
    assert time_line(result(tmp_path)) == ""


def test_a_narrow_terminal_gets_two_tables_and_whole_cells(tmp_path: Path) -> None:
    """At 80 columns HR and NDCG fit: 10 + 13 + 15 + 10 + 12 and 3 for each of 5 cells, 1 more."""
    text = text_of(result_table(result(tmp_path)), width=80)
    assert "…" not in text
    first, second = [line for line in text.splitlines() if "fedncf" in line]
    assert "50.00 ± 5.00" in first and first.count("│") == 6 and second.count("│") == 4
    (wide,) = [
        line
        for line in text_of(result_table(result(tmp_path)), 120).splitlines()
        if "fedncf" in line
    ]
    assert wide.count("│") == 8


def test_pairs_of_figures_stay_together(tmp_path: Path) -> None:
    text = text_of(runs_table([result(tmp_path, 0), result(tmp_path, 1, 0.52)]), width=80)
    assert [line.count("│") for line in text.splitlines() if "fedncf" in line] == [6, 6]


@pytest.mark.parametrize("width", [80, 120])
def test_the_notes_are_left_aligned_and_break_between_phrases(tmp_path: Path, width: int) -> None:
    text = text_of(result_table(replace(result(tmp_path), select="best_test")), width)
    notes = [line for line in text.splitlines() if line[0] not in "┏┃┡│└"][1:]
    assert all(line == line.strip() for line in notes)
    assert any("round 7 of 10, best HR@10 on test (optimistic)" in line for line in notes)
    assert any("HR, NDCG and coverage in per cent" in line for line in notes)
    assert any("go to the 10% most popular items" in line for line in notes)


def test_phrases_fill_lines() -> None:
    assert lines_of(["aa", "bb", "cc"], 7) == ["aa; bb;", "cc"]
    assert lines_of(["longer than that", "b"], 5) == ["longer than that;", "b"]


def test_a_value_that_is_absent_is_a_dash(tmp_path: Path) -> None:
    row = next(
        line for line in text_of(result_table(result(tmp_path))).splitlines() if "fedncf" in line
    )
    assert row.count("–") == 4  # full HR, full NDCG, coverage, popularity share


def test_mean_and_standard_deviation() -> None:
    """Of 50, 52 and 54 per cent: mean 52, sample standard deviation 2."""
    assert mean_sd([0.50, 0.52, 0.54]) == "52.00 ± 2.00"
    assert mean_sd([0.5]) == "50.00"
    assert mean_sd([0.5, None]) == "–"
    assert mean_sd([]) == "–"


def test_runs_are_grouped_over_seeds(tmp_path: Path) -> None:
    runs = [result(tmp_path, seed, hr) for seed, hr in ((0, 0.5), (1, 0.52), (2, 0.54))]
    text = text_of(runs_table([*runs, result(tmp_path, strategy="fedmf", hr=0.4)]))
    assert "tiny, protocol strict" in text
    rows = [line for line in text.splitlines() if line.startswith("│")]
    assert len(rows) == 3
    assert "fedmf" in rows[0] and "40.00" in rows[0]
    assert "fedncf" in rows[1] and "0,1,2" in rows[1] and "52.00 ± 2.00" in rows[1]
    assert "popularity" in rows[2] and "25.00 ± 0.00" in rows[2]


def test_results_survive_the_file(tmp_path: Path) -> None:
    saved = result(tmp_path)
    saved.save()
    assert load_result(tmp_path) == saved


def test_missing_and_foreign_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="has not completed"):
        load_result(tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({"metrics": {}}))
    with pytest.raises(ServerError, match="not a result"):
        load_result(tmp_path)


def test_totals() -> None:
    """Two rounds of 10 users in 2 and 3 seconds: 20 users in 5 seconds, 4 a second."""
    lines = [
        {"round": r, "num_users": 10, "bytes_up": 5, "seconds": {"train": s, "server": 0.5}}
        for r, s in ((1, 2.0), (2, 3.0))
    ]
    totals = totals_of(lines)
    assert totals["num_users"] == 20
    assert totals["bytes_up"] == 10
    assert totals["seconds_server"] == 1.0
    assert totals["users_per_second"] == pytest.approx(4.0)
    assert "round" not in totals
