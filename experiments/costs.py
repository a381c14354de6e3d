"""What a run cost, and how soon it was nearly as good as at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev

from experiments.arms import Arm
from experiments.collect import Run
from server_app.meter import PARTS

NEARLY = 0.95
MEASURES = ("validation/sampled/hr@10", "test/sampled/hr@10")
"""What convergence is told by: the first that the run's records have."""


def bytes_up(run: Run) -> float | None:
    """Bytes that nodes sent in all rounds, for each user trained in a round."""
    return _each_user(run, "bytes_up")


def bytes_down(run: Run) -> float | None:
    """Bytes sent to nodes in all rounds, for each user trained in a round."""
    return _each_user(run, "bytes_down")


def seconds(run: Run) -> float | None:
    """Wall time of all rounds."""
    parts = [run.result.totals.get(f"seconds_{part}") for part in PARTS]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def simulated_hours(run: Run) -> float | None:
    """Hours on the clock of simulated devices; None without them."""
    found = run.result.totals.get("devices_seconds")
    return None if found is None else found / 3600


def device_bytes(run: Run) -> float | None:
    """Bytes that simulated devices received and sent, in vain too, for each update used."""
    totals = run.result.totals
    used = totals.get("devices_delivered")
    return (totals["devices_bytes_down"] + totals["devices_bytes_up"]) / used if used else None


def rounds_to_nearly(run: Run) -> float | None:
    """The first evaluated round with 95 % of the last evaluation's HR@10."""
    points = measured(run)
    if not points:
        return None
    goal = NEARLY * points[max(points)]
    return float(min(round_ for round_, value in points.items() if value >= goal))


def measured(run: Run, measures: tuple[str, ...] = MEASURES) -> dict[int, float]:
    """Evaluated rounds with the first of the measures that the records have."""
    evaluations = {
        int(record["evaluated_round"]): record["evaluation"]
        for record in run.records
        if record.get("evaluation") and record.get("evaluated_round") is not None
    }
    for measure in measures:
        if evaluations and all(measure in values for values in evaluations.values()):
            return {round_: float(values[measure]) for round_, values in evaluations.items()}
    return {}


COSTS: Mapping[str, tuple[str, Callable[[Run], float | None]]] = {
    "bytes_up": ("kB up", bytes_up),
    "bytes_down": ("kB down", bytes_down),
    "seconds": ("seconds", seconds),
    "rounds_to_95": ("rounds to 95 %", rounds_to_nearly),
    "device_bytes": ("device kB", device_bytes),
    "simulated_hours": ("simulated h", simulated_hours),
}
"""Heading and measure of each column of costs."""
OF_DEVICES = ("device_bytes", "simulated_hours")
"""Those that only runs with simulated devices have."""


def costs_of(arms: Sequence[Arm]) -> list[str]:
    """The columns for a table of these arms: those of devices only where a run has some."""
    simulated = any(simulated_hours(run) is not None for arm in arms for run in arm.runs)
    return [cost for cost in COSTS if simulated or cost not in OF_DEVICES]


def mean_and_sd(arm: Arm, cost: str) -> tuple[float | None, float | None]:
    """Over the arm's runs; None where one of them has no such figure, or there is one alone."""
    values = [COSTS[cost][1](run) for run in arm.runs]
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None, None
    return fmean(known), stdev(known) if len(known) > 1 else None


def _each_user(run: Run, key: str) -> float | None:
    users, sent = run.result.totals.get("num_users"), run.result.totals.get(key)
    return sent / users if users and sent is not None else None
