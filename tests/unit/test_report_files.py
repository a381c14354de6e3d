from __future__ import annotations

import csv
import io
import json
import re
import shutil
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from conf.tree import ConfigError
from experiments.baseline import Baseline
from experiments.claim_files import Claims
from experiments.report import drawn
from experiments.report.formats import comma_separated, escaped, latex, markdown
from experiments.report.make import make_report
from experiments.report.section import Asked, Section
from experiments.report.table import Cell, Line, Table
from experiments.tuning import Tuning
from server_app.errors import ServerError
from server_app.references.rows import ReferenceRow
from server_app.results import load_result
from server_app.user_ranks import save_ranks
from tests.report_runs import figures, kept, made_up_run

GOOD, BAD = [0] * 15, [0] * 5 + [20] * 10
"""Ranks of 15 users: HR@10 of 1, and of a third. With 13 or fewer users, some of them alike,
Wilcoxon's test goes through all permutations, seconds each time."""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    for seed in range(3):
        good, bad = list(GOOD), list(BAD)
        good[seed] = 30  # another user misses in each seed
        made_up_run(folder, f"avg-{seed}", good, "strategy=fedavg", f"seed={seed}")
        made_up_run(folder, f"mf-{seed}", bad, "strategy=fedmf", f"seed={seed}")
    return folder


def report(
    folder: Path,
    out: Path,
    tuning: Tuning | None = None,
    claims: tuple[Claims, ...] = (),
    baseline: Baseline | None = None,
) -> list[Section]:
    asked = Asked(tuning or Tuning(), claims, baseline, with_figures=False)
    return make_report([folder], out, asked)


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text("utf-8"))))


def test_csv_has_the_numbers_of_the_runs(runs: Path, tmp_path: Path) -> None:
    report(runs, tmp_path / "out")
    found = {row["method"]: row for row in rows(tmp_path / "out/tables/file-strict.csv")}
    assert list(found) == ["fedavg", "fedmf", "popularity"]
    for method, stem in (("fedavg", "avg"), ("fedmf", "mf")):
        results = [load_result(runs / f"{stem}-{seed}") for seed in range(3)]
        for name in ("test/sampled/hr@10", "test/full/ndcg@10"):
            values = [result.metrics[name] for result in results]
            assert float(found[method][f"{name} mean"]) == pytest.approx(np.mean(values), abs=1e-15)
            assert float(found[method][f"{name} sd"]) == pytest.approx(
                np.std(values, ddof=1), abs=1e-15
            )
    # 5 000 bytes and 20 000 of 10 users, 1.5 + 0.5 s; round 10 has half of the last HR@10.
    costs = [found["fedavg"][f"{c} mean"] for c in
             ("bytes_up", "bytes_down", "seconds", "rounds_to_95")]  # fmt: skip
    assert costs == ["500.0", "2000.0", "2.0", "20.0"]
    values = json.loads((tmp_path / "out/report.json").read_text())
    number = values["splits"][0]["tables"]["file-strict"][0]["test/full/hr@10 mean"]
    assert repr(number) == found["fedavg"]["test/full/hr@10 mean"]


def test_differences_are_those_of_users(runs: Path, tmp_path: Path) -> None:
    """Per user, mean over seeds of good less bad: users 0 to 2 hit in two of three seeds and
    always with the bad, so −1/3; users 3 and 4 zero; the other ten, +1. Mean (10 − 1) / 15.
    """
    report(runs, tmp_path / "out")
    found = rows(tmp_path / "out/tables/file-strict-differences.csv")
    (one,) = [r for r in found if (r["kind"], r["figure"]) == ("best", "test/full/hr@10")]
    assert (one["arm"], one["against"], one["seeds"], one["users"]) == (
        "fedavg", "fedmf", "0 1 2", "15",
    )  # fmt: skip
    assert float(one["difference"]) == pytest.approx(9 / 15, abs=1e-12)
    users = np.round([-1 / 3] * 3 + [0] * 2 + [1] * 10, 12)
    expected = stats.wilcoxon(users, zero_method="pratt").pvalue
    assert float(one["p"]) == float(one["p_holm"]) == pytest.approx(expected, rel=1e-9)
    assert float(one["over_users low"]) < 9 / 15 < float(one["over_users high"])
    # Seeds do not differ in the mean: an interval without width.
    assert float(one["over_seeds low"]) == pytest.approx(9 / 15, abs=1e-12)


def test_every_arm_less_the_one_that_was_asked_for(runs: Path, tmp_path: Path) -> None:
    """As in the test before, with the other sign: here the bad is what is asked about."""
    report(runs, tmp_path / "out", baseline=Baseline.parsed(["strategy=fedavg"]))
    found = rows(tmp_path / "out/tables/file-strict-differences.csv")
    (one,) = [r for r in found if (r["kind"], r["figure"]) == ("baseline", "test/full/hr@10")]
    assert (one["arm"], one["against"]) == ("fedmf", "fedavg")
    assert float(one["difference"]) == pytest.approx(-9 / 15, abs=1e-12)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("strategy=fedprox", "no arm with strategy=fedprox"),
        ("seed=0", r"2 arms \(fedavg, fedmf\) with seed=0"),
    ],
)
def test_a_baseline_that_cannot_be_told_is_said(
    runs: Path, tmp_path: Path, asked: str, why: str
) -> None:
    (section,) = report(runs, tmp_path / "out", baseline=Baseline.parsed([asked]))
    (line,) = section.choices
    assert re.search(why, line)
    found = rows(tmp_path / "out/tables/file-strict-differences.csv")
    assert {row["kind"] for row in found} == {"best", "popularity"}
    with pytest.raises(ConfigError, match="--against takes KEY=VALUE"):
        Baseline.parsed(["strategy"])


def test_best_is_bold_only_where_it_is_ahead(runs: Path, tmp_path: Path) -> None:
    (section,) = report(runs, tmp_path / "out")
    best = section.tables[0].lines[0]
    assert best.label.text == "fedavg"
    assert best.cells[1].bold and not best.cells[1].mark
    close = list(GOOD)
    close[0] = 30
    for seed in range(3):
        made_up_run(runs, f"prox-{seed}", close, "strategy=fedprox", f"seed={seed}")
    (section,) = report(runs, tmp_path / "out")
    marks = {line.label.text: (line.cells[1].bold, line.cells[1].mark)
             for line in section.tables[0].lines}  # fmt: skip
    assert marks["fedavg"] == marks["fedprox"] == (False, "†")
    assert marks["fedmf"] == (False, "")


def test_nothing_is_tested_without_ranks(runs: Path, tmp_path: Path) -> None:
    for seed in range(3):
        (runs / f"mf-{seed}/user_ranks.npz").unlink()
    (section,) = report(runs, tmp_path / "out")
    table, differences = section.tables
    assert not any(cell.bold or cell.mark for line in table.lines for cell in line.cells)
    assert any(sentence.startswith("No test") for sentence in table.caption)
    one = next(n for n in differences.numbers if n["kind"] == "best")
    assert one["p"] is None and one["over_users low"] is None
    assert one["over_seeds low"] is not None


def test_ranks_of_other_figures_are_not_used(runs: Path, tmp_path: Path) -> None:
    shutil.copy(runs / "mf-0/user_ranks.npz", runs / "avg-0/user_ranks.npz")
    report(runs, tmp_path / "out")
    text = (tmp_path / "out/report.md").read_text()
    assert "avg-0: its user ranks are not those of its result" in text
    assert "No test and nothing in bold" in text


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.ids: set[str] = set()
        self.open: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in {"meta", "img"}:
            self.open.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "action", "data", "srcset"}:
                self.addresses.append(value or "")
            if name == "id":
                assert value not in self.ids
                self.ids.add(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in {"td", "th", "strong"}:
            self.cells.append(data)


def test_the_page_is_whole_and_asks_nobody(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawn, "MAKERS", {"learning curves": drawn.curves})
    made_up_run(runs, "rap", GOOD, "strategy=fedrap", status="failed")
    make_report([runs], tmp_path / "out", Asked())
    text = (tmp_path / "out/report.html").read_text("utf-8")
    page = Page()
    page.feed(text)
    assert page.open == []
    assert {"h1", "h2", "h3", "table", "nav", "img"} <= set(page.tags)
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert all(a.startswith(("#", "data:image/svg+xml;base64,")) for a in page.addresses)
    assert {a[1:] for a in page.addresses if a.startswith("#")} <= page.ids
    assert not re.search(r"url\(|@import", text)
    assert "93.33 ± 0.00" in page.cells
    assert "Left out: rap, failed: a reason" in text
    figures_there = {p.suffix for p in (tmp_path / "out/figures").glob("*learning-curves*")}
    assert figures_there == {".png", ".svg"}


def test_names_are_escaped_in_every_format() -> None:
    name = "<b>a|b_c & 5 % *"
    table = Table("t", name, [name], ["x", name], [Line(Cell(name), [Cell("1", bold=True)])],
                  [{"method": name, "value": 0.1, "none": None}])  # fmt: skip
    assert r"\textless{}b\textgreater{}a|b\_c \& 5 \% $^{*}$ & \textbf{1} \\" in latex(table)
    assert latex(table).count(r"\toprule") == latex(table).count(r"\bottomrule") == 1
    assert r"| <b>a\|b_c & 5 % \* | **1** |" in markdown(table)
    (row,) = csv.DictReader(io.StringIO(comma_separated(table)))
    assert row == {"method": name, "value": "0.1", "none": ""}
    assert escaped("\\{}") == r"\textbackslash{}\{\}"
    section = Section("s", name, [], [table], [], [])
    from experiments.report.write import page

    assert "<b>a|b_c" not in page([section], [name], name)


def test_same_input_same_bytes_in_any_order(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawn, "MAKERS", {"learning curves": drawn.curves})
    folders = list(runs.iterdir())
    for out, order in (("one", folders), ("two", folders[::-1] + folders)):
        make_report(order, tmp_path / out, Asked())
    names = sorted(p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*.*"))
    assert len(names) > 8
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_report_takes_the_place_of_an_earlier_one(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made_up_run(runs, "other", GOOD, "strategy=fedavg", "protocol=paper")
    report(runs, out)
    assert (out / "tables/file-paper.csv").exists()
    (out / "tables/mine.txt").write_text("kept")
    shutil.rmtree(runs / "other")
    report(runs, out)
    assert not (out / "tables/file-paper.csv").exists()
    assert (out / "tables/mine.txt").exists()


def test_references_stand_below_and_the_best_is_marked(runs: Path, tmp_path: Path) -> None:
    folder = runs / "references"
    folder.mkdir()
    for method, ranks_U in (("ease", GOOD), ("itemknn", BAD)):
        row = ReferenceRow(method, method, "own", {}, "file", "strict", 0, 15, 50,
                           figures(ranks_U), {}, 1.5, 0.1)  # fmt: skip
        (folder / f"{method}.json").write_text(json.dumps({"rows": [asdict(row)]}))
        save_ranks(folder / f"{method}.{method}.ranks.npz", kept(ranks_U))
    (section,) = report(runs, tmp_path / "out")
    lines = {line.label.text: line for line in section.tables[0].lines}
    assert lines["ease (reference)"].cells[1].mark == "‡"
    assert lines["itemknn (reference)"].cells[1].mark == ""
    assert lines["ease (reference)"].cells[7].text == "1.5"
    one = next(
        n
        for n in section.tables[1].numbers
        if (n["kind"], n["arm"], n["figure"]) == ("reference", "fedmf", "test/full/hr@10")
    )
    assert (one["against"], one["seeds"], one["users"]) == ("ease", "0", 15)
    assert one["difference"] == pytest.approx(-10 / 15)


def test_claims_are_judged_beside_the_runs(runs: Path, tmp_path: Path) -> None:
    arms = {"a": {"strategy": "fedavg"}, "b": {"strategy": "fedmf"}, "c": {"strategy": "fedrap"}}
    figure = "test/full/hr@10"
    claims = Claims("study", "file", "strict", arms,
                    {"a": {figure: 93.33}, "b": {figure: 90.0}, "c": {figure: 50.0}},
                    [["a", "b"], ["b", "a"]])  # fmt: skip
    (section,) = report(runs, tmp_path / "out", claims=(claims,))
    verdicts = {n["claim"]: n["verdict"] for n in section.tables[2].numbers}
    assert verdicts == {
        "a (fedavg)": "within noise",  # all seeds alike: an interval of no width, 14/15 ≠ .9333
        "b (fedmf)": "not reproduced",
        "c": "not run",
        "a > b": "reproduced",
        "b > a": "not reproduced",
    }


def test_bad_input_is_one_line(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        report(tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no runs in"):
        report(tmp_path / "empty", tmp_path / "out")
    with pytest.raises(ConfigError, match=r"no run has a setting strategy\.nothing"):
        report(runs, tmp_path / "out", Tuning(("strategy.nothing",)))
    made_up_run(tmp_path / "failed", "rap", GOOD, status="failed")
    with pytest.raises(ServerError, match=r"no finished run to report .*a reason"):
        report(tmp_path / "failed", tmp_path / "out")
