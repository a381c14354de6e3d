r"""How near federated runs come to the best that sees all data in one place: docs/beyond.md.

    python benchmarks/write_beyond.py --dataset ml_100k --dataset filmtrust=/data/ratings.txt \
        --all-references ml_100k,filmtrust --runs runs/beyond

For each data set: its preset ``conf/experiment/best_<data set>.yaml``, the other closed forms with
their settings there, FedRecGEL's defaults, and the references with the settings that
``search_beyond.py`` has found. What was made is kept in ``--runs``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.beyond_log import OUT as SEARCH
from benchmarks.beyond_log import Log
from benchmarks.beyond_page import CLOSED_FORMS, SLOW, beyond_page
from benchmarks.results_cells import Cell, DataSource, ReferenceCell, RunCell, SettingsCell
from benchmarks.write_results import make_missing, page_parser, write


def main() -> None:
    """Make what is missing, then write the page."""
    asked = _arguments()
    sources = [DataSource.parsed(text) for text in asked.dataset or ["ml_100k"]]
    cells = list(_cells(sources, asked))
    if not asked.page_only:
        slow = [source for source in sources if source.name in asked.all_references]
        make_missing([SettingsCell(source, asked.runs) for source in slow], cells, 1)
    write(asked.out, beyond_page(cells, _command(sources, asked), Log(asked.search)))


def _cells(sources: Sequence[DataSource], asked: argparse.Namespace) -> Iterator[Cell]:
    log = Log(asked.search)
    for source in sources:
        chosen = log.chosen_references(source)
        for seed in (int(seed) for seed in asked.seeds.split(",")):
            for strategy in CLOSED_FORMS:
                preset = f"best_{source.name}"
                yield RunCell(source, "strict", seed, asked.runs, strategy, preset)
            yield RunCell(source, "strict", seed, asked.runs, "fedrecgel")
            yield ReferenceCell(source, "strict", seed, asked.runs, chosen)
            if source.name in asked.all_references:
                yield ReferenceCell(source, "strict", seed, asked.runs)


def _arguments() -> argparse.Namespace:
    parser = page_parser(__doc__.splitlines()[0], "beyond")
    parser.add_argument(
        "--all-references",
        type=lambda text: text.split(","),
        default=[],
        help=f"data sets with {' and '.join(SLOW)} beside the other references, which takes long",
    )
    parser.add_argument("--search", type=Path, default=SEARCH, help="what search_beyond.py wrote")
    return parser.parse_args()


def _command(sources: Sequence[DataSource], asked: argparse.Namespace) -> str:
    """The command line that makes the same page, with the data files' names alone."""
    words = ["python benchmarks/write_beyond.py"]
    words += [f"--dataset {source.shown}" for source in sources]
    words += [f"--seeds {asked.seeds}"]
    words += [f"--all-references {','.join(asked.all_references)}"] if asked.all_references else []
    return " ".join(words)


if __name__ == "__main__":
    main()
