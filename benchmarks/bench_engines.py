"""Time one round of local training: the dense per-client style, the loop and the cohort engine.

    python benchmarks/bench_engines.py [--quick] [--case fedrecgel fedmf] [--users 94]

The cohort is made up (``benchmarks.made_up``). Every way trains the same users from the same
samples and makes the server's step; the second column of times adds the drawing of samples,
each style in its own way. The ways take turns in one process, so ratios hold on a noisy
machine. That they compute the same is checked first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks import report, roofline, ways
from benchmarks.made_up import Shape, Work, doubled, made_up
from benchmarks.timing import Way, alternate
from benchmarks.two_processes import TwoProcesses

CASES = {
    "fedrecgel": ["strategy=fedrecgel"],
    "fedncf": ["strategy=fedncf"],
    "fedmf": ["strategy=fedmf"],
    "fedrecgel, mf": ["strategy=fedrecgel", "model=mf"],
    "fedavg": ["strategy=fedavg"],
}
DRAWN = ", drawn"
ONE_CORE, TWO_PROCESSES = "cohort, 1 thread", "cohort, 2 processes"
Seconds = dict[str, tuple[float, float]]
"""Seconds of a round by way: samples given, and drawn."""


def check_equal(overrides: Sequence[str], shape: Shape) -> None:
    """Refuse to time ways that do not compute the same.

    In double precision: in single precision an input of a ReLU that is zero up to rounding
    may pass in one way and not in another.
    """
    torch.set_num_threads(1)
    work = doubled(made_up(overrides, shape))
    dense = ways.Dense(work)
    dense.round()
    expected = dense.sums()
    for engine in ("loop", "cohort"):
        for name, tensor in ways.updates(work.with_engine(name=engine)).tensors.items():
            error = float((tensor.to_dense() - expected[name]).norm() / expected[name].norm())
            if not error < 1e-10:
                raise SystemExit(f"{engine} differs from dense in {name} by {error:.1e}")


def measure(overrides: Sequence[str], shape: Shape, repeats: int, pair: TwoProcesses) -> Seconds:
    """Median seconds of a round of each way."""
    work, cores = pair.work, report.cores()
    dense, drawing = ways.Dense(work), ways.DenseDrawing(work)
    engines = {
        "loop, 1 thread": work.with_engine(name="loop"),
        ONE_CORE: work,
        f"cohort, {cores} workers": work.with_engine(workers=cores),
    }
    timed = {f"dense, {n} thread{'s' * (n > 1)}": Way(dense.round, n) for n in {1, cores}}
    timed["drawing"] = Way(drawing.draw)
    for name, engine in engines.items():
        timed[name] = Way(partial(ways.given_round, engine))
        timed[name + DRAWN] = Way(partial(ways.drawn_round, engine))
    timed[TWO_PROCESSES] = Way(partial(pair.round, drawn=False))
    timed[TWO_PROCESSES + DRAWN] = Way(partial(pair.round, drawn=True))
    seconds = alternate(timed, repeats)
    lists = seconds.pop("drawing")
    given = {name: value for name, value in seconds.items() if not name.endswith(DRAWN)}
    return {n: (value, seconds.get(n + DRAWN, value + lists)) for n, value in given.items()}


def shares(work: Work, pair: TwoProcesses, seconds: Seconds) -> dict[str, float]:
    """Rates of one core and of both at once, needed work, and shares of the roofline."""
    torch.set_num_threads(1)
    one = roofline.measured_rates()
    first, second = pair.both(roofline.measured_rates)
    counts = roofline.Counts.of(work.samples)
    needs = roofline.NEEDS[work.cfg.model_name](counts, work.radii, work.cfg.model.factors)
    return {
        "mflop_a_user": needs.flops / counts.users / 1e6,
        "kbyte_a_user": needs.bytes / counts.users / 1e3,
        "gflops_one_core": one.flops / 1e9,
        "gflops_both_cores": (first + second).flops / 1e9,
        "copy_gb_s_one_core": one.cached_bytes / 1e9,
        "copy_gb_s_both_cores": (first + second).cached_bytes / 1e9,
        "copy_memory_gb_s_one_core": one.memory_bytes / 1e9,
        "share_one_core": needs.seconds(one) / seconds[ONE_CORE][0],
        "share_both_cores": needs.seconds(first + second) / seconds[TWO_PROCESSES][0],
    }


def lines(case: str, users: int, seconds: Seconds) -> list[list[str]]:
    """A case's rows; ratios are to the faster dense way."""
    best = [min(v[k] for n, v in seconds.items() if n.startswith("dense")) for k in range(2)]
    return [
        [
            f"{case}: {way}",
            *(f"{1e3 * given / users:.3f}" for given in values),
            f"{users / values[0]:.0f}",
            *(f"{dense / value:.1f}" for dense, value in zip(best, values, strict=True)),
        ]
        for way, values in seconds.items()
    ]


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--users", type=int, default=94)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="24 users, 2 repeats; writes no results"
    )
    args = parser.parse_args()
    users, repeats = (24, 2) if args.quick else (args.users, args.repeats)
    shape, rows = Shape(users=users), list[list[str]]()
    bounds: dict[str, dict[str, float]] = {}
    figures: dict[str, object] = {"users": users, "repeats": repeats}
    for case in args.case:
        check_equal(CASES[case], Shape(users=min(users, 12)))
        work = made_up(CASES[case], shape)
        with TwoProcesses(CASES[case], shape, work) as pair:
            seconds = measure(CASES[case], shape, repeats, pair)
            if work.strategy.update_kind == "gradient":
                bounds[case] = shares(work, pair, seconds)
        rows += lines(case, users, seconds)
        figures[case] = {way: {"given_s": v[0], "drawn_s": v[1]} for way, v in seconds.items()}
    about = f"{users} users a round, median of {repeats} turns; ratios to the faster dense way."
    header = ["way", "ms a user", "with drawing", "users/s", "ratio", "with drawing"]
    tables = [report.table(header, rows), *([roofline_table(bounds)] if bounds else [])]
    text = "\n\n".join(["# Engines", about, *tables])
    print(text)
    if not args.quick:
        report.write("engines", {**figures, "roofline": bounds}, text)


def roofline_table(bounds: Mapping[str, Mapping[str, float]]) -> str:
    """A column a case."""
    names = next(iter(bounds.values()))
    rows = [
        [name.replace("_", " "), *(f"{values[name]:.3g}" for values in bounds.values())]
        for name in names
    ]
    return report.table(["roofline", *bounds], rows)


if __name__ == "__main__":
    main()
