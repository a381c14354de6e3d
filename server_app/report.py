"""Tables of results. Every number stands under the name of its protocol."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table

from server_app.ranking import COVERAGE, POPULARITY_SHARE
from server_app.results import RunResult, load_result

__all__ = ["load_result", "mean_sd", "result_table", "runs_table", "standard_error"]

SHOWN = {
    "test/sampled/hr@10": "HR@10 sampled",
    "test/sampled/ndcg@10": "NDCG@10 sampled",
    "test/full/hr@10": "HR@10 full",
    "test/full/ndcg@10": "NDCG@10 full",
}
CATALOGUE = {COVERAGE: "coverage@10", POPULARITY_SHARE: "popular@10"}
RULE = {
    "best_validation": "round {0} of {1}, best HR@10 on validation",
    "best_test": "round {0} of {1}, best HR@10 on test (optimistic)",
    "last": "last round, {0}",
}


def standard_error(share: float, count: float) -> float:
    """Binomial standard error of a hit rate over ``count`` users."""
    return math.sqrt(share * (1 - share) / count)


def result_table(result: RunResult) -> Table:
    """One run beside the popularity ranking on the same split."""
    rule = RULE[result.select].format(result.selected_round, result.rounds)
    table = Table(
        title=f"{result.dataset}, protocol {result.protocol}",
        caption=f"{result.name}: protocol {result.protocol}, {_users(result)}, "
        f"{result.num_items} items, {rule}; HR with standard error over users",
    )
    table.add_column("ranking")
    columns = SHOWN | CATALOGUE
    for heading in columns.values():
        table.add_column(heading, justify="right")
    rows: list[tuple[str, Mapping[str, float]]] = [(result.strategy, result.metrics)]
    if result.popularity is not None:
        rows.append(("popularity", result.popularity))
    for label, metrics in rows:
        cells = [_cell(name, metrics, result.counts.get(name)) for name in columns]
        table.add_row(label, *cells)
    return table


def runs_table(results: Iterable[RunResult]) -> Table:
    """Several runs: mean and standard deviation over seeds, a row a configuration.

    Rows of one dataset and protocol are followed by their popularity ranking.
    """
    groups: dict[tuple[str, str], dict[tuple[str, str], list[RunResult]]] = {}
    for result in results:
        split = groups.setdefault((result.dataset, result.protocol), {})
        split.setdefault((result.strategy, result.model), []).append(result)
    table = Table(title="Mean ± standard deviation over runs")
    for heading in ("dataset", "protocol", "strategy", "model", "seeds"):
        table.add_column(heading)
    for heading in SHOWN.values():
        table.add_column(heading, justify="right")
    for (dataset, protocol), split in sorted(groups.items()):
        for (strategy, model), runs in sorted(split.items()):
            seeds = ",".join(str(seed) for seed in sorted(run.seed for run in runs))
            cells = [mean_sd([run.metrics.get(name) for run in runs]) for name in SHOWN]
            table.add_row(dataset, protocol, strategy, model, seeds, *cells)
        known = [run.popularity for runs in split.values() for run in runs if run.popularity]
        if known:
            cells = [mean_sd([metrics.get(name) for metrics in known]) for name in SHOWN]
            table.add_row(dataset, protocol, "popularity", "", "", *cells)
    return table


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
