r"""What came out of the paper's experiments, beside its claims: docs/paper.md.

    make paper-filmtrust ablation rho                       # sweeps and their reports
    python benchmarks/write_paper.py runs/paper_filmtrust runs/ablation runs/rho

Tables and figures are those of the reports (``NAME/report``); the reading of each experiment is the
text of ``benchmarks/paper_guide/NAME.md``. Sections of other experiments stay as they are.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.paper_page import kept, page, placed
from experiments.landscape import load_landscape
from experiments.sweep.spec import read_spec
from server_app.results import load_result

ROOT = Path(__file__).resolve().parents[1]
GUIDE = Path(__file__).with_name("paper_guide")
PICTURES = "pictures"
REPORT = Path("report", "report.json")
SHOWN = {"rho": ["radii"], "ablation": ["item-stability"]}
"""Figures of an experiment that the page shows."""
NOT_RUN = "| not run |"
"""A claim about settings that the experiment does not have."""
NUMBERS = (
    "seed", "users", "round", "loss", "highest rise", "rise alone", "eigenvalue", "residual",
)  # fmt: skip
"""Columns of the table of landscapes."""
KINDS = ("baseline",)
"""Differences that the page shows; the report has the others."""


def main() -> None:
    """Write the page and copy its pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("sweeps", nargs="+", type=Path, help="folders of sweeps with a report")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "paper.md")
    asked = parser.parse_args()
    try:
        found = kept(asked.out.read_text("utf-8")) if asked.out.exists() else {}
        given = experiments(asked.sweeps)
    except ValueError as error:
        parser.error(str(error))
    found |= {name: section(folder, asked.out.parent) for name, folder in given.items()}
    asked.out.write_text(page((GUIDE / "head.md").read_text("utf-8"), found), encoding="utf-8")
    print(f"wrote {asked.out}")


def experiments(folders: Sequence[Path]) -> dict[str, Path]:
    """Folders of sweeps by their experiment.

    Raises:
        ValueError: for one without place, reading, report or the figures that are shown, and for
            two of one experiment.

    """
    found = dict[str, Path]()
    for folder in folders:
        name = placed(folder.name)
        if name in found:
            raise ValueError(f"two folders of {name}: {found[name]} and {folder}")
        for path in (GUIDE / f"{name}.md", folder / "sweep.json", folder / REPORT):
            if not path.is_file():
                raise ValueError(f"{name}: there is no {path}")
        for figure in SHOWN.get(name, ()):
            _figure(folder, figure)
        found[name] = folder
    return found


def _figure(folder: Path, name: str) -> Path:
    """The one picture of a kind of figure in a sweep's report.

    Raises:
        ValueError: where there is none, or several.

    """
    found = sorted((folder / "report" / "figures").glob(f"*-{name}.png"))
    if len(found) != 1:
        raise ValueError(f"{folder.name}: {len(found)} figures {name!r} in its report, not one")
    return found[0]


def section(folder: Path, docs: Path) -> str:
    """Heading, command, reading, tables and pictures of one experiment."""
    asked = json.loads((folder / "sweep.json").read_text("utf-8"))
    report = json.loads((folder / REPORT).read_text("utf-8"))
    reading = (GUIDE / f"{folder.name}.md").read_text("utf-8").strip()
    title = asked["title"] or read_spec(folder.name)[0].title  # one made by its words alone
    lines = [f"## {title}", "", f"`make {folder.name.replace('_', '-')}`", "", reading, ""]
    for split in report["splits"]:
        lines += _split(folder, split)
    lines += sharpness(folder)
    lines += [_picture(folder, name, docs) for name in SHOWN.get(folder.name, ())]
    surfaces = (folder / "report").glob("landscape-s*/landscape.png")
    lines += [_copy(folder, path, path.parent.name, docs) for path in sorted(surfaces)[:1]]
    return "\n".join(lines)


def sharpness(folder: Path) -> Iterator[str]:
    """The numbers of each run that has a ``landscape.json``, beside the run's own seed."""
    runs = [path.parent for path in sorted(folder.glob("*/landscape.json"))]
    found = [(run, made) for run in runs if (made := load_landscape(run)) is not None]
    if not found:
        return
    yield f"| run | {' | '.join(NUMBERS)} |"
    yield f"|---|{'---:|' * len(NUMBERS)}"
    for run, made in found:
        numbers = made.sharpness
        yield (
            f"| {run.name} | {load_result(run).seed} | {made.users} | {made.round} | "
            f"{made.loss:.4f} | {numbers.rise:.4f} | {numbers.rise_alone:.4f} | "
            f"{numbers.eigenvalue:.3g} | {numbers.residual:.2g} |"
        )
    yield ""


def _split(folder: Path, split: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"* {line}" for line in split["choices"])
    yield ""
    slug = next(iter(split["tables"]))
    yield from _table(folder, slug)
    yield from differences(split["tables"].get(f"{slug}-differences", ()))
    claims = split["tables"].get(f"{slug}-claims", ())
    if claims:
        yield verdicts(claims)
        yield ""
        yield from _table(folder, f"{slug}-claims")


def _table(folder: Path, slug: str) -> Iterator[str]:
    """The lines of a report's table, without its heading and caption."""
    text = (folder / "report" / "tables" / f"{slug}.md").read_text("utf-8")
    yield from (line for line in text.splitlines() if line.startswith("|") and NOT_RUN not in line)
    yield ""


def verdicts(claims: Sequence[Mapping[str, Any]]) -> str:
    """How many of the claims came out how."""
    count = Counter(str(claim["verdict"]) for claim in claims)
    count.pop("not run", None)
    said = ", ".join(f"{number} {verdict}" for verdict, number in sorted(count.items()))
    return f"**Claims**: {said}."


def differences(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Every arm less the baseline: points, interval over seeds, interval over users."""
    found = [row for row in rows if row["kind"] in KINDS]
    if not found:
        return
    yield f"Less `{found[0]['against']}`, in points, with 95 % intervals:"
    yield ""
    yield "| method | figure | seeds | difference | over seeds | over users | p, corrected |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for row in found:
        p = row["p_holm"]
        cells = [
            row["arm"], row["figure"].removeprefix("test/"), str(len(str(row["seeds"]).split())),
            _points(row["difference"]), _interval(row, "over_seeds"), _interval(row, "over_users"),
            "–" if p is None else f"{p:.2g}",
        ]  # fmt: skip
        yield f"| {' | '.join(cells)} |"
    yield ""


def _interval(row: Mapping[str, Any], name: str) -> str:
    low, high = row[f"{name} low"], row[f"{name} high"]
    return "–" if low is None else f"[{_points(low)}, {_points(high)}]"


def _points(share: float) -> str:
    return f"{100 * share:+.2f}".replace("-", "−")


def _picture(folder: Path, name: str, docs: Path) -> str:
    """Copy a figure beside the page; the line that shows it."""
    return _copy(folder, _figure(folder, name), name, docs)


def _copy(folder: Path, source: Path, name: str, docs: Path) -> str:
    target = docs / PICTURES / f"{folder.name}-{name}.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    return f"![{folder.name}: {name}]({PICTURES}/{target.name})\n"


if __name__ == "__main__":
    main()
