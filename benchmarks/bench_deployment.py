"""What a round costs in a deployment: SuperLink and two SuperNodes on this machine.

    python benchmarks/bench_deployment.py [--quick]

Flower's SuperNode starts a process for every message. Cold, it imports Flower, torch and the
application each time; warm (``fedrecgel supernode``), it is forked from one that has the first
two already. The work itself is small, so a round's time is what an exchange costs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.command_run import Folder, folder
from client_app.distribute import distribute, even_sizes
from conf.compose import compose
from server_app.deployment import PREPARED, Deployment
from server_app.superlink_home import program

NODES, USERS, ROUNDS, STARTS = 2, 200, 9, 5
STRATEGIES = ("fedmf", "fedrecgel")
SHOWN = ("round", "train", "messages")
WAYS = {"cold": False, "warm": True}
DATA = [
    "dataset=synthetic",
    f"dataset.synthetic.users={USERS}",
    "dataset.synthetic.items=1682",
]


def settings(strategy: str) -> list[str]:
    """Overrides of one run: no evaluation but the last, which is not counted."""
    return [
        "federation=deployment",
        f"federation.num_nodes={NODES}",
        *DATA,
        f"strategy={strategy}",
        f"federation.rounds={ROUNDS}",
        f"evaluation.every={ROUNDS}",
        "evaluation.item_statistics=false",
        "evaluation.full=never",
    ]


def measured(place: Folder, warm: bool, strategies: Sequence[str]) -> dict[str, dict[str, float]]:
    """Median seconds of a round by part, for each strategy on one deployment."""
    where = place.path / ("warm" if warm else "cold")
    cfg = compose([*DATA, f"cache={place.path / 'cache'}"])
    distribute(cfg, where / PREPARED, even_sizes(USERS, NODES))
    deployment = Deployment(where, warm=warm)
    found = {}
    try:
        deployment.start()
        for strategy in strategies:
            options = [*settings(strategy), "--superlink", deployment.connection.address]
            parts = place.run(f"{where.name}-{strategy}", options).medians()
            found[strategy] = {**parts, "round": sum(parts.values())}
    finally:
        deployment.stop()
    return found


def start_seconds(command: Sequence[str]) -> float:
    """Median wall time of a command that does nothing but start."""
    times = []
    for _ in range(STARTS):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return median(times)


def main() -> None:
    """Print the table and, unless ``--quick``, write it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="warm fedmf only; writes no results")
    args = parser.parse_args()
    ways = {"warm": True} if args.quick else WAYS
    strategies = STRATEGIES[:1] if args.quick else STRATEGIES
    starts = {
        "flwr-clientapp, nothing of ours": start_seconds([program("flwr-clientapp"), "--help"]),
        "import torch": start_seconds([sys.executable, "-c", "import torch"]),
    }
    with folder() as place:
        figures = {way: measured(place, warm, strategies) for way, warm in ways.items()}
    rows = [
        [
            strategy,
            way,
            *(f"{figures[way][strategy][p]:.2f}" for p in ("round", "train", "messages")),
        ]
        for strategy in strategies
        for way in ways
    ]
    text = report.table(["strategy", "start", "round, s", "training", "messages"], rows)
    text += "\n\n" + report.table(
        ["process start alone", "s"], [[name, f"{value:.2f}"] for name, value in starts.items()]
    )
    print(text)
    if not args.quick:
        report.write("deployment", {"rounds": figures, "starts": starts}, text)


if __name__ == "__main__":
    main()
