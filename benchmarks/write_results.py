r"""Accuracy of all strategies beside references that see all data in one place.

    python benchmarks/write_results.py --dataset ml_100k --dataset filmtrust=/data/ratings.txt \
        --runs runs/results --out docs/results.md

Every cell is a run of ``fedrecgel run federation.grid=local`` with the strategy's own settings,
in a folder of ``--runs``, or the references with the settings that validation chose for the data
set (protocol strict, seed 0). What was made of the same configuration is not made again, so the
command goes on where it was stopped; a run that fails in a round is a result too. The page is
written from the runs' results alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.results_cells import Cell, DataSource, ReferenceCell, RunCell, SettingsCell
from benchmarks.results_page import failure_of, page

PROTOCOLS = ("strict", "paper")


def main() -> None:
    """Make what is missing, then write the page."""
    asked = _arguments()
    sources = [DataSource.parsed(text) for text in asked.dataset or ["ml_100k"]]
    cells = list(_cells(sources, asked))
    if not asked.page_only:
        make_missing([SettingsCell(source, asked.runs) for source in sources], cells, asked.jobs)
    write(asked.out, page(cells, _command(sources, asked)))


def make_missing(settings: Sequence[SettingsCell], cells: Sequence[Cell], jobs: int) -> None:
    """Make what is missing; the process ends with a status of 1 where a cell cannot be made."""
    _make_all(settings, jobs)  # References wait for the settings that are chosen for them.
    _make_all(cells, jobs)
    lacking = [cell.label for cell in cells if not cell.is_made and failure_of(cell) is None]
    if lacking:
        sys.exit(f"{len(lacking)} of {len(cells)} cells failed: {', '.join(lacking)}")


def write(out: Path, text: str) -> None:
    """Write a page, and say so."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    print(f"wrote {out}")


def _make_all(cells: Sequence[Cell | SettingsCell], jobs: int) -> None:
    """Make what is missing, and say what became of each cell."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for cell, error in zip(cells, pool.map(_made, cells), strict=True):
            print(f"{cell.label}: {error or 'done'}", flush=True)


def _made(cell: Cell | SettingsCell) -> str | None:
    """Make a cell; what went wrong, in a line."""
    try:
        cell.make()
    except Exception as error:  # noqa: BLE001  the other cells are made all the same
        return f"failed: {type(error).__name__}: {error}"
    return None


def _cells(sources: Sequence[DataSource], asked: argparse.Namespace) -> Iterator[Cell]:
    from conf.compose import options

    seeds = [int(seed) for seed in asked.seeds.split(",")]
    for source in sources:
        for protocol in asked.protocols.split(","):
            for seed in seeds:
                yield ReferenceCell(source, protocol, seed, asked.runs)
            for strategy in (
                asked.strategies.split(",") if asked.strategies else options("strategy")
            ):
                for seed in seeds:
                    yield RunCell(source, protocol, seed, asked.runs, strategy)


def _arguments() -> argparse.Namespace:
    parser = page_parser(__doc__.splitlines()[0], "results")
    parser.add_argument("--protocols", default=",".join(PROTOCOLS))
    parser.add_argument("--strategies", default="", help="by default all of them")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, one core each")
    return parser.parse_args()


def page_parser(description: str, name: str) -> argparse.ArgumentParser:
    """Options of every command that makes cells in runs/NAME and writes docs/NAME.md."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--dataset", action="append", help="NAME of conf/dataset, or NAME=PATH")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--runs", type=Path, default=Path("runs") / name)
    parser.add_argument("--out", type=Path, default=Path("docs") / f"{name}.md")
    parser.add_argument("--page-only", action="store_true", help="write what has been made so far")
    return parser


def _command(sources: Sequence[DataSource], asked: argparse.Namespace) -> str:
    """The command line that makes the same page, with the data files' names alone."""
    words = ["python benchmarks/write_results.py"]
    words += [f"--dataset {source.shown}" for source in sources]
    words += [f"--protocols {asked.protocols} --seeds {asked.seeds}"]
    words += [f"--strategies {asked.strategies}"] if asked.strategies else []
    return " ".join(words)


if __name__ == "__main__":
    main()
