"""What a message costs: the same 200 users on 2 nodes and on 200, over Ray and in process.

    python benchmarks/bench_messages.py [--quick]

All users train in every round, so both layouts do the same work; with one user a node each of
them also costs a message each way, which carries the whole model. Both grids work on as many
nodes at once as there are cores.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.command_run import Folder, folder
from server_app.meter import PARTS

USERS, ITEMS, ROUNDS = 200, 1682, 7
GRIDS = ("local", "ray")
STRATEGIES = ("fedmf", "fedrecgel")


def settings(strategy: str, grid: str, nodes: int) -> list[str]:
    """Overrides of one run, in the shape of MovieLens-100K."""
    return [
        "dataset=synthetic",
        f"dataset.synthetic.users={USERS}",
        f"dataset.synthetic.items={ITEMS}",
        "dataset.synthetic.median_rows=65.0",
        "dataset.synthetic.spread=1.0",
        f"strategy={strategy}",
        f"federation.grid={grid}",
        f"federation.num_nodes={nodes}",
        "federation.fraction=1.0",
        f"federation.rounds={ROUNDS}",
        f"federation.checkpoint_every={ROUNDS}",
        f"evaluation.every={ROUNDS}",
        "evaluation.item_statistics=false",
        "evaluation.full=never",
    ]


def measured(place: Folder, strategy: str, grid: str, nodes: int) -> dict[str, float]:
    """Median seconds of a round by part, of the whole, and milliseconds a message."""
    parts = place.run(f"{strategy}-{grid}-{nodes}", settings(strategy, grid, nodes)).medians()
    per_message = 1e3 * parts["messages"] / nodes
    return {**parts, "round": sum(parts.values()), "message_ms": per_message}


def main() -> None:
    """Print the table and, unless ``--quick``, write it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="in process only; writes no results")
    args = parser.parse_args()
    figures = {}
    with folder() as place:
        for strategy in STRATEGIES:
            for grid in GRIDS[:1] if args.quick else GRIDS:
                for nodes in (2, USERS):
                    name = f"{strategy}, {grid}, {nodes} nodes"
                    figures[name] = measured(place, strategy, grid, nodes)
    header = ["", *PARTS.values(), "round (s)", "ms a message"]
    rows = [
        [name, *(f"{f[part]:.3f}" for part in (*PARTS, "round")), f"{f['message_ms']:.1f}"]
        for name, f in figures.items()
    ]
    title = f"# Messages\n\n{USERS} users a round, {ITEMS:,} items, median seconds a round.\n\n"
    text = title + report.table(header, rows)
    print(text)
    if not args.quick:
        report.write("messages", figures, text)


if __name__ == "__main__":
    main()
