"""The page of the paper's experiments: a section by itself, the others as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.paper_page import ORDER, kept, page
from benchmarks.write_paper import GUIDE, main, sharpness
from experiments.landscape import Landscape, SharpnessNumbers
from server_app.results import RunResult

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


@pytest.mark.parametrize(
    ("second", "told"),
    [("rho", "a second section of rho: '## B'"), ("roh", "'roh' has no place on the page")],
)
def test_sections_that_would_be_lost_are_refused(second: str, told: str) -> None:
    text = page("# Head\n", {"rho": SECTION.format("A", "rho")}) + SECTION.format("B", second)
    with pytest.raises(ValueError, match=told):
        kept(text)


def written(monkeypatch: pytest.MonkeyPatch, out: Path, *folders: Path) -> None:
    """Run the command."""
    monkeypatch.setattr("sys.argv", ["write_paper.py", *map(str, folders), "--out", str(out)])
    main()


def sweep(folder: Path) -> Path:
    """A folder as a sweep of the landscape and its report leave it, without splits."""
    (folder / "report").mkdir(parents=True)
    (folder / "sweep.json").write_text('{"title": "Flat or not"}', "utf-8")
    (folder / "report" / "report.json").write_text('{"splits": []}', "utf-8")
    return folder


def test_one_experiment_is_added_and_renewed_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, folder = tmp_path / "paper.md", sweep(tmp_path / "landscape")
    others = {name: SECTION.format(name, name.replace("_", "-")) for name in ("rho", ORDER[-1])}
    out.write_text(page("# An old head\n", others), "utf-8")
    written(monkeypatch, out, folder)
    added = out.read_text("utf-8")
    assert added.startswith((GUIDE / "head.md").read_text("utf-8"))
    sections = kept(added)
    assert list(sections) == ["rho", "landscape", ORDER[-1]]
    assert {name: sections[name].strip() for name in others} == {
        name: text.strip() for name, text in others.items()
    }
    (folder / "sweep.json").write_text('{"title": "Flat"}', "utf-8")
    written(monkeypatch, out, folder)
    assert out.read_text("utf-8") == added.replace("## Flat or not", "## Flat")


def test_folders_that_cannot_be_written_of_leave_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, folder = tmp_path / "paper.md", sweep(tmp_path / "landscape")
    unreported = sweep(tmp_path / "other" / "landscape")
    (unreported / "report" / "report.json").unlink()
    refused = {
        (tmp_path / "mine",): "'mine' has no place on the page",
        (unreported,): f"landscape: there is no {unreported}/report/report.json",
        (folder, folder): f"two folders of landscape: {folder} and {folder}",
        (sweep(tmp_path / "rho"),): "rho: 0 figures 'radii' in its report, not one",
    }
    for folders, told in refused.items():
        with pytest.raises(SystemExit):
            written(monkeypatch, out, *folders)
        assert told in capsys.readouterr().err
    assert not out.exists()


def test_every_experiment_with_a_reading_has_its_place() -> None:
    assert {path.stem for path in GUIDE.glob("*.md")} - {"head"} <= set(ORDER)


def trained(folder: Path, seed: int) -> None:
    """A run of a seed, with a landscape whose own seed is another."""
    folder.mkdir()
    RunResult(
        folder.name, folder, "made", "paper", "fedrecgel", "FedRecGEL", "neumf", seed, 200, 50, 61,
        61, "best_test", early_stopped=False, metrics={}, counts={}, popularity=None,
    ).save()  # fmt: skip
    numbers = SharpnessNumbers(0.02, 0.00213, 0.0112, 6.6545, 0.0058, 40)
    grid = [[3.0, 3.0, 3.0], [3.0, 2.0, 3.0], [3.0, 3.0, 3.0]]
    Landscape(folder.name, 61, 0, 200, 200, 9, [-1, 0, 1], grid, numbers).save(folder)


def test_numbers_of_landscapes(tmp_path: Path) -> None:
    trained(tmp_path / "a-s7", 7)
    trained(tmp_path / "b-s8", 8)
    told = "200 | 61 | 2.0000 | 0.0021 | 0.0112 | 6.65 | 0.0058"
    rows = [f"| a-s7 | 7 | {told} |", f"| b-s8 | 8 | {told} |"]
    assert list(sharpness(tmp_path))[2:] == [*rows, ""]
    assert list(sharpness(tmp_path / "a-s7")) == []
