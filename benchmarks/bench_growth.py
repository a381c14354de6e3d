"""Time and peak memory of a round against cohort, catalogue and samples a user.

    python benchmarks/bench_growth.py [--quick]

Every point is a fresh process with one torch thread, so that its peak of resident memory is
its own. A round draws the samples, trains the cohort and makes the server's step. Memory is
counted from after the imports and includes the made-up cohort. Writes ``results/growth.png``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import plot, report

CASES = {"fedrecgel": ["strategy=fedrecgel"], "fedmf": ["strategy=fedmf"]}
Point = dict[str, float]


@dataclass(frozen=True)
class Axis:
    """What grows: a field of ``made_up.Shape``, its values, and what else is set."""

    title: str
    field: str
    values: tuple[float, ...]
    others: Mapping[str, float]

    def shape(self, value: float) -> dict[str, float]:
        """Settings of one point."""
        return {**self.others, self.field: value}


SAMPLES = "median_rows"
AXES = (
    Axis("cohort (users)", "users", (30, 100, 300, 1000), {}),
    Axis("catalogue (items)", "items", (1000, 10_000, 30_000, 100_000), {"users": 50}),
    Axis(
        "samples a user",
        SAMPLES,
        (20, 60, 200, 600),
        {"users": 50, "items": 3000, "spread": 0.0, "least_rows": 1},
    ),
)


def measured(overrides: Sequence[str], shape: Mapping[str, float]) -> Point:
    """One point, in a process of its own."""
    script = Path(__file__).with_name("growth_point.py")
    command = [sys.executable, str(script), json.dumps(overrides), json.dumps(shape)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    point: Point = json.loads(done.stdout)
    return point


def panel(axis: Axis, points: Mapping[str, Sequence[Point]], *, memory: bool) -> plot.Panel:
    """Seconds, or memory in MiB, against what grows."""
    curves = []
    for case, of_case in points.items():
        xs = axis.values if axis.field != SAMPLES else [p["samples_a_user"] for p in of_case]
        ys = [_mebibytes(p) if memory else p["seconds"] for p in of_case]
        curves.append(plot.Curve(case, xs, ys))
    label = "peak memory of data and round (MiB)" if memory else "time of a round (s)"
    return plot.Panel(axis.title, label, curves)


def lines(axis: Axis, points: Mapping[str, Sequence[Point]]) -> list[list[str]]:
    """Rows of the table."""
    return [
        [
            f"{case}, {axis.title}: {_size(axis, value, point):,.0f}",
            f"{point['seconds']:.4f}",
            f"{point['server_seconds']:.4f}",
            f"{_mebibytes(point):.1f}",
            f"{point['peak_bytes'] / 2**20:.0f}",
        ]
        for case, of_case in points.items()
        for value, point in zip(axis.values, of_case, strict=True)
    ]


def main() -> None:
    """Measure, print, plot and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="two points a curve; only prints")
    quick = parser.parse_args().quick
    axes = [Axis(a.title, a.field, a.values[:2], a.others) for a in AXES] if quick else AXES
    found = {
        axis.title: {c: [measured(o, axis.shape(v)) for v in axis.values] for c, o in CASES.items()}
        for axis in axes
    }
    rows = [row for axis in axes for row in lines(axis, found[axis.title])]
    header = ["round", "s", "of it server step, s", "data and round, MiB", "process, MiB"]
    about = "One torch thread; drawing, training, server step. A process a point."
    text = "\n\n".join(["# Growth", about, report.table(header, rows)])
    print(text)
    if quick:
        return
    report.write("growth", found, text + "\n\n![growth](growth.png)")
    panels = [[panel(a, found[a.title], memory=memory) for a in axes] for memory in (False, True)]
    plot.save(report.RESULTS / "growth.png", "Growth of a round of local training", panels)


def _size(axis: Axis, value: float, point: Point) -> float:
    return point["samples_a_user"] if axis.field == SAMPLES else value


def _mebibytes(point: Point) -> float:
    return (point["peak_bytes"] - point["before_bytes"]) / 2**20


if __name__ == "__main__":
    main()
