"""A round of 1,000 users out of 10,000, 100,000 and 1,000,000 synthetic users.

    python benchmarks/bench_population.py [--quick]

100,000 items, about 25 interactions a user, two nodes on the in-process grid. Time and memory
of a round are to depend on the cohort and the catalogue, not on the population. Preparation
is timed by itself: the first run of a size makes the data, which all its runs then share.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.command_run import Folder, Ran, folder
from server_app.meter import PARTS

STRATEGIES = ("fedmf", "fedrecgel")
COHORT, ROUNDS = 1000, 7


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


def row(place: Folder, strategy: str, users: int, items: int) -> tuple[dict[str, float], Ran]:
    """Median seconds of a round by part and of the whole."""
    ran = place.run(f"{strategy}-{users}", settings(strategy, users, items))
    parts = ran.medians()
    return {**parts, "round": sum(parts.values())}, ran


def main() -> None:
    """Print the table and, unless ``--quick``, write it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="smaller; writes no results")
    args = parser.parse_args()
    populations = (2000, 20_000) if args.quick else (10_000, 100_000, 1_000_000)
    items = 5000 if args.quick else 100_000
    figures: dict[str, dict[str, float]] = {}
    with folder() as place:
        prepared = {}
        for users in populations:
            # The first command makes the data, the second finds them.
            first, again = (
                place.run(f"first-{n}-{users}", settings("fedmf", users, items)).seconds
                for n in range(2)
            )
            prepared[users] = first - again
        for strategy in STRATEGIES:
            for users in populations:
                parts, ran = row(place, strategy, users, items)
                figures[f"{strategy}, {users:,} users"] = {
                    **parts,
                    "peak_gb": ran.peak_bytes / 1e9,
                    "prepare": prepared[users],
                }
    header = ["", *PARTS.values(), "round (s)", "ratio", "peak GB", "preparing (s)"]
    text = report.table(header, table_rows(figures, populations[0]))
    title = (
        f"# Population\n\n{COHORT:,} users a round, {items:,} items, median seconds a round.\n\n"
    )
    print(title + text)
    if not args.quick:
        report.write("population", figures, title + text)


def table_rows(figures: dict[str, dict[str, float]], smallest: int) -> list[list[str]]:
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
