"""Reports of benchmarks: what is written can be read back, and nothing names the host."""

from __future__ import annotations

import json
import math
import platform
from pathlib import Path

import pytest

from benchmarks import report


def test_figures_come_back_with_machine_versions_and_date(tmp_path: Path) -> None:
    figures = {"fedmf": {"seconds": 0.25, "users": 94}}
    report.write("round", figures, "# Round\n\ntext", tmp_path)
    read = json.loads((tmp_path / "round.json").read_text())
    assert read["figures"] == figures
    assert read["machine"]["cores"] >= 1
    assert read["machine"]["memory_gib"] > 0
    assert set(read["versions"]) == {"python", "torch", "numpy", "flwr", "commit"}
    assert read["date"].endswith("+00:00")
    markdown = (tmp_path / "round.md").read_text()
    assert markdown.startswith("# Round\n\ntext\n")
    assert read["versions"]["torch"] in markdown


def test_nothing_names_the_host_or_a_path(tmp_path: Path) -> None:
    report.write("round", {}, "text", tmp_path)
    written = "".join(path.read_text() for path in tmp_path.iterdir())
    assert str(Path(__file__).parents[2]) not in written
    assert platform.node() not in written


def test_a_second_run_replaces_the_first(tmp_path: Path) -> None:
    report.write("round", {"a": 1}, "first", tmp_path)
    report.write("round", {"b": 2}, "second", tmp_path)
    assert json.loads((tmp_path / "round.json").read_text())["figures"] == {"b": 2}
    assert "first" not in (tmp_path / "round.md").read_text()


def test_figures_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        report.write("round", {"ratio": math.nan}, "text", tmp_path)
    assert not list(tmp_path.iterdir())


def test_table_aligns_numbers_to_the_right() -> None:
    expected = "| way | ms |\n| --- | ---: |\n| loop | 9.3 |"
    assert report.table(["way", "ms"], [["loop", "9.3"]]) == expected
    with pytest.raises(ValueError, match="2 columns, but a row of 1"):
        report.table(["way", "ms"], [["loop"]])
