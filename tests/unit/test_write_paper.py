"""The page of the paper's experiments: a section by itself, the others as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.write_paper import GUIDE, ORDER, kept, page, sharpness
from experiments.landscape import Landscape, SharpnessNumbers

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"
SECTION = "## {0}\n\n`make {1}`\n\nread\n"


def test_the_page_that_is_there_is_taken_apart_and_put_together() -> None:
    text = PAGE.read_text("utf-8")
    assert page((GUIDE / "head.md").read_text("utf-8"), kept(text)) == text


def test_a_section_is_replaced_and_all_are_in_their_order() -> None:
    old = page(
        "# Head\n",
        {"rho": SECTION.format("Old", "rho"), "ablation": SECTION.format("A", "ablation")},
    )
    found = kept(old)
    assert list(found) == ["ablation", "rho"]
    found["rho"] = SECTION.format("New", "rho")
    found["paper_filmtrust"] = SECTION.format("Table", "paper-filmtrust")
    new = page("# Head\n", found)
    assert [line for line in new.splitlines() if line.startswith("## ")] == [
        "## Table",
        "## A",
        "## New",
    ]
    assert page("# Head\n", kept(new)) == new


def test_a_section_without_its_command_is_not_lost_silently() -> None:
    with pytest.raises(ValueError, match="no `make …` in the section '## Alone'"):
        kept("# Head\n\n## Alone\n\nread\n")


def test_every_experiment_with_a_reading_has_its_place() -> None:
    assert {path.stem for path in GUIDE.glob("*.md")} - {"head"} <= set(ORDER)


def test_numbers_of_landscapes(tmp_path: Path) -> None:
    (tmp_path / "a-s0").mkdir()
    numbers = SharpnessNumbers(0.02, 0.00213, 0.0112, 6.6545, 0.01, 4, converged=False)
    Landscape(
        "a-s0", 61, 0, 200, 200, 9, [-1, 0, 1], [[3, 3, 3], [3, 2, 3], [3, 3, 3]], numbers
    ).save(tmp_path / "a-s0")
    assert list(sharpness(tmp_path))[2] == (
        "| a-s0 | 200 | 61 | 2.0000 | 0.0021 | 0.0112 | 6.65 (not converged) |"
    )
    assert list(sharpness(tmp_path / "a-s0")) == []
