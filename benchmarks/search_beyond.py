r"""Settings of docs/beyond.md, by NDCG@10 of validation items in the whole catalogue, seed 0.

    python benchmarks/search_beyond.py --dataset ml_100k --dataset filmtrust=/data/ratings.txt

Every trial and what validation said of it goes to ``benchmarks/results/beyond_search.json``, line
by line; what is there is not tried again. Test figures are neither shown nor kept.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.beyond_log import OUT, Log
from benchmarks.beyond_trials import (
    L2,
    Trial,
    central_trials,
    fedease_trials,
    fedials_trials,
    fedspectral_trials,
    measured,
)
from benchmarks.results_cells import DataSource


def main() -> None:
    """Try what is missing."""
    asked = _arguments()
    log = Log(asked.out)
    for text in asked.dataset or ["ml_100k"]:
        source = DataSource.parsed(text)
        for trial in _trials(source, asked):
            if trial.key.startswith(tuple(asked.only.split(","))) and not log.has(trial):
                _try(trial, log, asked.scratch)


def _try(trial: Trial, log: Log, scratch: Path) -> None:
    try:
        found = measured(trial, scratch)
    except RuntimeError as error:
        print(f"{trial.source.name}: {error}", flush=True)
        return
    log.note(trial, found)
    print(
        f"{trial.source.name}: {trial.key}: {found.validation:.5f}, {found.seconds:.0f} s, "
        f"{found.peak_mb:.0f} MB",
        flush=True,
    )


def _trials(source: DataSource, asked: argparse.Namespace) -> Iterator[Trial]:
    from client_app.data import load_dataset
    from conf.compose import compose

    num_users = load_dataset(compose(source.overrides("strict"))).num_users
    l2_grid = [float(l2) for l2 in asked.l2.split(",")] if asked.l2 else L2
    return itertools.chain(
        central_trials(source),
        fedease_trials(source, l2_grid),
        fedials_trials(source, num_users),
        fedspectral_trials(source),
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", action="append", help="NAME of conf/dataset, or NAME=PATH")
    parser.add_argument("--only", default="", help="beginnings of trials: central ease,fedials")
    parser.add_argument("--l2", default="", help="of fedease; by default a grid")
    parser.add_argument("--scratch", type=Path, default=Path("runs/search"))
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args()


if __name__ == "__main__":
    main()
