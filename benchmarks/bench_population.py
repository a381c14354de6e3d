"""A round of 1,000 users out of 10,000, 100,000 and 1,000,000 synthetic users.

    python benchmarks/bench_population.py [--quick]

100,000 items, about 25 interactions a user, two nodes on the in-process grid. Time and memory
of a round are to depend on the cohort and the catalogue, not on the population. Populations take
turns, so that a change of the machine's load meets all of them. Preparation is timed by itself;
all runs share what it made.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.command_run import Folder, folder
from client_app.data import load_dataset
from conf.compose import compose
from server_app.meter import PARTS

STRATEGIES = ("fedmf", "fedrecgel")
COHORT, ROUNDS, TURNS = 1000, 7, 3
Figures = dict[str, float]


def settings(strategy: str, users: int, items: int) -> list[str]:
    """Overrides of one run; 1,000 users are ranked after the last round."""
    return [
        "dataset=synthetic",
        f"dataset.synthetic.users={users}",
        f"dataset.synthetic.items={items}",
        f"strategy={strategy}",
        "federation.grid=local",
        f"federation.fraction={COHORT / users!r}",
        f"federation.rounds={ROUNDS}",
        f"federation.checkpoint_every={ROUNDS}",
        f"evaluation.every={ROUNDS}",
        "evaluation.full=never",
        f"evaluation.users={COHORT}",
    ]


def preparing(place: Folder, users: int, items: int) -> float:
    """Seconds in which this process makes the data and writes them where the runs find them."""
    cfg = compose([*settings("fedmf", users, items), f"cache={place.path / 'cache' / 'fedrecgel'}"])
    started = time.perf_counter()
    load_dataset(cfg)
    return time.perf_counter() - started


def one_run(place: Folder, strategy: str, users: int, items: int, turn: int) -> Figures:
    """Median seconds of a round by part, and the peak of memory in GB."""
    ran = place.run(f"{strategy}-{users}-{turn}", settings(strategy, users, items))
    return {**ran.medians(), "peak_gb": ran.peak_bytes / 1e9}


def measure(
    place: Folder, strategy: str, populations: tuple[int, ...], items: int
) -> list[Figures]:
    """Medians over the turns, for each population."""
    turns = [
        [one_run(place, strategy, n, items, turn) for n in populations] for turn in range(TURNS)
    ]
    found = []
    for runs in zip(*turns, strict=True):
        figures = {name: median(run[name] for run in runs) for name in runs[0]}
        found.append({**figures, "round": sum(figures[part] for part in PARTS)})
    return found


def main() -> None:
    """Print the table and, unless ``--quick``, write it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="smaller; writes no results")
    args = parser.parse_args()
    populations = (2000, 20_000) if args.quick else (10_000, 100_000, 1_000_000)
    items = 5000 if args.quick else 100_000
    figures: dict[str, Figures] = {}
    with folder() as place:
        prepared = [preparing(place, users, items) for users in populations]
        for strategy in STRATEGIES:
            found = measure(place, strategy, populations, items)
            for users, one, seconds in zip(populations, found, prepared, strict=True):
                figures[f"{strategy}, {users:,} users"] = {**one, "prepare": seconds}
    header = ["", *PARTS.values(), "round (s)", "ratio", "peak GB", "preparing (s)"]
    text = report.table(header, table_rows(figures, populations[0]))
    title = (
        f"# Population\n\n{COHORT:,} users a round, {items:,} items; median seconds of a round, "
        f"medians of {TURNS} runs in turns.\n\n"
    )
    print(title + text)
    if not args.quick:
        report.write("population", figures, title + text)


def table_rows(figures: dict[str, Figures], smallest: int) -> list[list[str]]:
    """Cells of the table; the ratio is to the smallest population."""
    rows = []
    for name, seconds in figures.items():
        base = figures[f"{name.split(',')[0]}, {smallest:,} users"]
        cells = [f"{seconds[part]:.3f}" for part in (*PARTS, "round")]
        ratio = f"{seconds['round'] / base['round']:.2f}"
        rows.append([name, *cells, ratio, f"{seconds['peak_gb']:.2f}", f"{seconds['prepare']:.1f}"])
    return rows


if __name__ == "__main__":
    main()
