"""Tables of results. Every number stands under the name of its protocol."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group

from server_app.callbacks import epsilon_text
from server_app.meter import PARTS
from server_app.poisoning import EXPOSURE_RATIO
from server_app.ranking import COVERAGE, POPULARITY_SHARE, TOP_SHARE
from server_app.results import RunResult, load_result
from server_app.tables import FittedTable, Row

__all__ = ["load_result", "mean_sd", "result_table", "runs_table", "standard_error"]

SHOWN = {
    "test/sampled/hr@10": "HR@10 sampled",
    "test/sampled/ndcg@10": "NDCG@10 sampled",
    "test/full/hr@10": "HR@10 full",
    "test/full/ndcg@10": "NDCG@10 full",
}
CATALOGUE = {COVERAGE: "coverage@10", POPULARITY_SHARE: "popular@10"}
CATALOGUE_NOTE = [
    "coverage@10: share of all items that are in some user's top 10",
    f"popular@10: per cent of all top-10 places that go to the {TOP_SHARE:.0%} most popular items",
]
RULE = {
    "best_validation": "round {0} of {1}, best HR@10 on validation",
    "best_test": "round {0} of {1}, best HR@10 on test (optimistic)",
    "last": "last round, {0}",
}


def standard_error(share: float, count: float) -> float:
    """Binomial standard error of a hit rate over ``count`` users."""
    return math.sqrt(share * (1 - share) / count)


def result_table(result: RunResult) -> FittedTable:
    """One run beside the popularity ranking on the same split."""
    rule = RULE[result.select].format(result.selected_round, result.rounds)
    rows: list[tuple[str, Mapping[str, float]]] = [(result.strategy, result.metrics)]
    if result.popularity is not None:
        rows.append(("popularity", result.popularity))
    columns = SHOWN | CATALOGUE
    return FittedTable(
        title=f"{result.dataset}, protocol {result.protocol}",
        keys=["ranking"],
        figures=list(columns.values()),
        rows=[
            Row([label], [_cell(name, metrics, result.counts.get(name)) for name in columns])
            for label, metrics in rows
        ],
        notes=[
            [f"Run {result.name}", _users(result), f"{result.num_items} items", rule],
            ["HR, NDCG and coverage in per cent", "± standard error over users"],
            CATALOGUE_NOTE,
            *([[timing]] if (timing := time_line(result)) else []),
            *privacy_notes(result.privacy),
            *([[secure]] if (secure := secagg_line(result)) else []),
            *([found] if (found := poisoning_notes(result)) else []),
            *([found] if (found := devices_notes(result.totals)) else []),
        ],
    )


def privacy_notes(privacy: Mapping[str, object] | None) -> list[list[str]]:
    """ε and δ of a run and what they are of; nothing where there is no bound."""
    if privacy is None or not (epsilon := epsilon_text(privacy)):
        return []
    of_whom = "of a user in all rounds" if privacy["mechanism"] == "ldp" else "of the run"
    return [[f"{epsilon} {of_whom}", f"neighbours: {privacy['adjacency']}", str(privacy["covers"])]]


def poisoning_notes(result: RunResult) -> list[str]:
    """What a run with an attack or a defence adds, in per cent; empty for another."""
    notes, found = [], result.poisoning
    if (ratio := result.metrics.get(EXPOSURE_RATIO.format(10))) is not None:
        notes.append(f"ER@10 of the targets {100 * ratio:.2f}")
    if "malicious" in found:
        notes.append(f"{found['malicious']:.0f} malicious updates")
    if "flagged" in found:
        notes.append(f"{found['flagged']:.0f} updates left out or cut")
    notes += [f"{n} {100 * found[n]:.1f}" for n in ("precision", "recall") if n in found]
    lost = {f"drop/{name}": label for name, label in SHOWN.items()}
    notes += [f"{label} lost {100 * found[n]:.2f}" for n, label in lost.items() if n in found]
    return notes


def devices_notes(totals: Mapping[str, float]) -> list[str]:
    """What a run on simulated devices adds; empty for another."""
    if not (asked := totals.get("devices_selected")):
        return []
    lost = {n: totals[f"devices_{n}"] for n in ("dropped", "late", "stale")}
    used, hours = totals["devices_delivered"], totals["devices_seconds"] / 3600
    kilobytes = (totals["devices_bytes_down"] + totals["devices_bytes_up"]) / 1e3 / max(used, 1)
    return [
        f"simulated devices: {hours:.2f} h",
        f"{used:.0f} of {asked:.0f} updates used",
        *(f"{count:.0f} {name}" for name, count in lost.items() if count),
        f"mean staleness {totals['devices_staleness'] / max(used, 1):.2f}",
        f"{kilobytes:.0f} kB a used update",
    ]


def time_line(result: RunResult) -> str:
    """Wall time of the rounds and its parts; empty for a result without them."""
    seconds = {part: result.totals.get(f"seconds_{part}", 0.0) for part in PARTS}
    total = sum(seconds.values())
    if total <= 0:
        return ""
    shares = [f"{PARTS[part]} {value / total:.0%}" for part, value in seconds.items()]
    return f"{result.rounds} rounds in {total:.1f} s: {', '.join(shares)}"


def secagg_line(result: RunResult) -> str:
    """What secure aggregation took beside the uploads; empty for a run without it."""
    totals = result.totals
    if not totals.get("secagg_sums"):
        return ""
    sent = totals["secagg_bytes_up"] + totals["secagg_bytes_down"]
    return (
        f"secure aggregation: {totals['secagg_sums']:.0f} sums, {totals['secagg_dropped']:.0f} "
        f"drop-outs, {totals['secagg_seconds']:.1f} s and {sent / 1e6:.1f} MB of extra exchanges"
    )


def runs_table(results: Iterable[RunResult]) -> Group:
    """Several runs: mean and standard deviation over seeds, a row a configuration.

    A table for each dataset and protocol, with their popularity ranking as the last row.
    """
    groups: dict[tuple[str, str], dict[tuple[str, str], list[RunResult]]] = {}
    for result in results:
        split = groups.setdefault((result.dataset, result.protocol), {})
        split.setdefault((result.strategy, result.model), []).append(result)
    return Group(*(_split_table(*names, split) for names, split in sorted(groups.items())))


def _split_table(
    dataset: str, protocol: str, split: Mapping[tuple[str, str], Sequence[RunResult]]
) -> FittedTable:
    rows = []
    for (strategy, model), runs in sorted(split.items()):
        seeds = ",".join(str(seed) for seed in sorted(run.seed for run in runs))
        rows.append(Row([strategy, model, seeds], _means([run.metrics for run in runs])))
    known = [run.popularity for runs in split.values() for run in runs if run.popularity]
    if known:
        rows.append(Row(["popularity", "", ""], _means(known)))
    return FittedTable(
        title=f"Mean ± standard deviation over runs: {dataset}, protocol {protocol}",
        keys=["ranking", "model", "seeds"],
        figures=list(SHOWN.values()),
        rows=rows,
        notes=[["HR and NDCG in per cent"]],
    )


def _means(runs: Sequence[Mapping[str, float]]) -> list[str]:
    return [mean_sd([metrics.get(name) for metrics in runs]) for name in SHOWN]


def mean_sd(values: Sequence[float | None]) -> str:
    """Mean ± sample standard deviation in per cent; a dash where a run has no value."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return "–"
    mean = f"{100 * statistics.fmean(known):.2f}"
    return mean if len(known) == 1 else f"{mean} ± {100 * statistics.stdev(known):.2f}"


def _users(result: RunResult) -> str:
    """Number of users, and of those behind the figures where these are fewer."""
    counts = [count for name, count in result.counts.items() if name in SHOWN]
    if not counts or min(counts) >= result.num_users:
        return f"{result.num_users} users"
    ends = [f"{count:.0f}" for count in sorted({min(counts), max(counts)})]
    return f"figures over {' to '.join(ends)} of {result.num_users} users"


def _cell(name: str, metrics: Mapping[str, float], count: float | None) -> str:
    value = metrics.get(name)
    if value is None:
        return "–"
    text = f"{100 * value:.2f}"
    if "/hr@" in name and count:
        return f"{text} ± {100 * standard_error(value, count):.2f}"
    return text
