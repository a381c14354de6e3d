"""Where the time of a round goes, phase by phase, and what messages add in a run.

    python benchmarks/bench_profile.py [--quick]

First a round of local training of 94 made-up users, one torch thread; then a run of 943
made-up users on two nodes of the in-process grid, by the run's own account of its rounds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks import report, ways
from benchmarks.made_up import Shape, Work, made_up, made_up_dataset
from benchmarks.phases import REST, Phase, timed
from conf.compose import compose
from models.neumf_block import PRIVATE
from models.rng import Role, derive_rng
from server_app.callbacks import Callback, RoundRecord
from server_app.cli_common import quiet_flower
from server_app.grid import LocalGrid
from server_app.run import run_server


def _pass(block: object, group: object, room: object, users: object, kind: int) -> str:
    return "private pass" if kind == PRIVATE else "base pass"


ENGINE = (
    Phase("drawing samples", "client_app.engine:draw_epochs"),
    Phase("private rows in and out", "client_app.private_rows:RowLayout.pack"),
    Phase("private rows in and out", "client_app.private_rows:RowLayout.unpack"),
    Phase("summing updates", "models.types:SumOfUpdates.add"),
    Phase("server step", "benchmarks.ways:stepped"),
)
NEUMF = (
    Phase("pairs", "models.neumf_block:distinct_pairs"),
    Phase("rows of a group", "models.neumf_block:_Block.train"),
    Phase("base pass", "models.neumf_block:_Block.unperturbed", _pass),
    Phase("shared-perturbed pass", "models.neumf_block:_Block.shared_perturbed"),
    Phase("plain shared gradient", "models.neumf_block:_Block.shared_plain"),
    Phase("item rows of a block", "models.neumf_block:_Block.result"),
    Phase("private step", "strategies.fedrecgel:FedRecGEL._private_step"),
)
MF = (
    Phase("pairs", "models.mf_block:flatten_samples"),
    Phase("pairs", "models.mf_block:labelled"),
    Phase("layout", "models.mf_block:layout_of"),
    Phase("losses", "models.mf_block:Labelled.losses"),
    Phase("passes", "models.mf_block:_sam"),
)
STEP = "strategies.fedmf:FedMF._private_step"
CASES: dict[str, tuple[list[str], tuple[Phase, ...]]] = {
    "fedrecgel": (["strategy=fedrecgel"], (*ENGINE, *NEUMF)),
    "fedncf": (["strategy=fedncf"], (*ENGINE, *NEUMF)),
    "fedmf": (["strategy=fedmf"], (*ENGINE, *MF, Phase("private step", STEP))),
}


def profile(work: Work, phases: Sequence[Phase], rounds: int) -> dict[str, float]:
    """Seconds of a round by phase: means over rounds after a first that does not count."""
    ways.drawn_round(work)
    with timed(phases) as clock:
        for _ in range(rounds):
            ways.drawn_round(work)
    return {name: seconds / rounds for name, seconds in clock.seconds.items()}


class Rounds(Callback):
    """Keeps what a run says of its rounds, and each round's wall time."""

    def __init__(self) -> None:
        self.seconds: list[dict[str, float]] = []
        self._last = time.perf_counter()

    def on_round(self, record: RoundRecord) -> None:
        """Keep the seconds of a finished round."""
        now = time.perf_counter()
        self.seconds.append({**record.seconds, "whole round": now - self._last})
        self._last = now


def run_locally(overrides: Sequence[str], rounds: int, folder: Path) -> dict[str, float]:
    """Median seconds by part of a run's rounds, without the first and the evaluated last."""
    ratings, kept = folder / "ratings.csv", Rounds()
    _write_ratings(ratings)
    settings = [
        "dataset=file",
        f"dataset.path={ratings}",
        f"output={folder / 'runs'}",
        f"cache={folder / 'cache'}",
        "federation.grid=local",
        "federation.num_nodes=2",
        f"federation.rounds={rounds}",
        f"evaluation.every={rounds}",
    ]
    cfg = compose([*overrides, *settings])
    run_server(LocalGrid(cfg.federation.num_nodes), cfg, [kept])
    counted = kept.seconds[1:-1]
    return {name: median(round_[name] for round_ in counted) for name in counted[0]}


def _write_ratings(path: Path) -> None:
    """Users in random order, so that both nodes have work for the same time."""
    dataset = made_up_dataset(Shape(users=943), seed=0)
    lines = [
        f"{user},{item},5,{place}\n"
        for user in derive_rng(0, Role.SYNTHETIC, 1).permutation(dataset.num_users)
        for place, item in enumerate(dataset.train_of(user))
    ]
    path.write_text("".join(lines), encoding="utf-8")


def table_of(found: dict[str, dict[str, float]], title: str, *, shares: bool) -> str:
    """A row a phase, milliseconds a round and, where phases add up, their shares, by case."""
    names = list(dict.fromkeys(name for seconds in found.values() for name in seconds))
    names.sort(key=lambda name: name == REST)
    rows = [[name, *(_cell(found[case], name, shares) for case in found)] for name in names]
    return report.table([title, *found], rows)


def _cell(seconds: dict[str, float], name: str, shares: bool) -> str:
    if name not in seconds:
        return "-"
    share = f" ({seconds[name] / sum(seconds.values()):.0%})" if shares else ""
    return f"{1e3 * seconds[name]:.2f}{share}"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; only prints")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    quiet_flower()
    phases, runs = dict[str, dict[str, float]](), dict[str, dict[str, float]]()
    for case, (overrides, watched) in CASES.items():
        phases[case] = profile(made_up(overrides, Shape()), watched, rounds=3 if quick else 20)
        with tempfile.TemporaryDirectory() as folder:
            runs[case] = run_locally(overrides, 4 if quick else 12, Path(folder))
    about = "94 users of 1,682 items, one thread; ms a round (share)."
    local = (
        "943 users on two nodes of the in-process grid, a tenth a round; ms, median of rounds. "
        "Messages: an exchange less the slowest node's work."
    )
    tables = [table_of(phases, "phase", shares=True), table_of(runs, "part", shares=False)]
    text = "\n\n".join(["# Profile of a round", about, tables[0], local, tables[1]])
    print(text)
    if not quick:
        report.write("profile", {"phases_s": phases, "local_run_s": runs}, text)


if __name__ == "__main__":
    main()
