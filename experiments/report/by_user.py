"""Figures that need more of a run than its log: its users' ranks and data, its items' movements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from client_app.data import Dataset, load_dataset
from client_app.errors import DataError
from conf.tree import ConfigError, from_mapping
from experiments import groups
from experiments.arms import Arm, Split
from experiments.compare import Comparison
from experiments.figures.drift import ItemDrift, item_drift
from experiments.figures.grouped import GroupedAccuracy, GroupSeries, accuracy_by_group
from experiments.report.no_data import NoDataError
from models.types import IntArray, UserRanks
from server_app.errors import ServerError
from server_app.item_drift import read_drift
from server_app.run_folder import read_config

KINDS = {"test/full": "NDCG@10, whole catalogue, test", "test/sampled": "NDCG@10, sampled, test"}


def grouped(split: Split, comparison: Comparison) -> tuple[Figure, str]:
    """NDCG by group of users, and by popularity of the held-out item; the first seed of each."""
    first = [(arm.label, arm.runs[0].ranks["model"]) for arm in split.arms if arm.runs[0].ranks]
    if not first:
        raise NoDataError("no run kept its users' ranks (evaluation.user_ranks)")
    kind = next((kind for kind in KINDS if all(kind in ranks.ranks for _, ranks in first)), None)
    if kind is None:
        raise NoDataError("the runs kept ranks of different kinds")
    if not all(np.array_equal(ranks.users_U, first[0][1].users_U) for _, ranks in first):
        raise NoDataError("the runs ranked different users")
    dataset = _dataset(split.arms[0])
    popularity = split.arms[0].runs[0].ranks.get("popularity")
    rows = [*first, *([("popularity", popularity)] if popularity else [])]
    panels = [_panel(by, dataset, rows, kind) for by in (groups.by_activity, groups.by_answer)]
    caption = f"{KINDS[kind]}, by the user's number of interactions, and by the held-out item"
    return accuracy_by_group(panels), f"{caption}; the first seed of each, ± standard error."


def _panel(
    by: Callable[[Dataset, IntArray], groups.Grouping],
    dataset: Dataset,
    rows: list[tuple[str, UserRanks]],
    kind: str,
) -> GroupedAccuracy:
    users_U = rows[0][1].users_U
    grouping = by(dataset, users_U)
    found = [(label, groups.accuracy_in_groups(grouping, r.ranks[kind])) for label, r in rows]
    series = [GroupSeries(label, one.ndcg_K, one.ndcg_error_K) for label, one in found]
    return GroupedAccuracy(KINDS[kind], grouping.names, found[0][1].users_K, series)


def _dataset(arm: Arm) -> Dataset:
    """The data of the arm's first run, where it still is where that run had it."""
    try:
        return load_dataset(from_mapping(read_config(arm.runs[0].result.folder)))
    except (ConfigError, DataError, OSError, ServerError) as error:
        raise NoDataError(f"the data cannot be read ({error})") from None


def stability(split: Split, comparison: Comparison) -> tuple[Figure, str]:
    """Movement of item embeddings, of the first seed of each arm that logged it."""
    found = [one for arm in split.arms if (one := _drift(arm)) is not None]
    if not found:
        raise NoDataError("no run logged it (evaluation.item_drift) for two evaluations or more")
    tables = sorted({table for table, _ in found})
    if len(tables) > 1:
        found = [(table, replace(one, label=f"{one.label}: {table}")) for table, one in found]
    named = tables[0] if len(tables) == 1 else "one table and seed each"
    caption = f"Movement of item embeddings between observed rounds, {named}."
    return item_drift([one for _, one in found]), caption


def _drift(arm: Arm) -> tuple[str, ItemDrift] | None:
    """The first table that the arm's first logged run compared with an observation before.

    With the name of table and seed.
    """
    for run in arm.runs:
        lines: list[Any] = list(read_drift(run.result.folder))
        for table in sorted({name for line in lines for name in line["tables"]}):
            seen = [(line["round"], line["tables"].get(table, {})) for line in lines]
            moved = [(round_, of) for round_, of in seen if of.get("cosine") is not None]
            if moved:
                return f"{table} of seed {run.seed}", _drawn(arm.label, moved)
    return None


def _drawn(label: str, moved: list[tuple[int, Any]]) -> ItemDrift:
    rounds, of = [round_ for round_, _ in moved], [values for _, values in moved]
    return ItemDrift(
        label,
        np.array(rounds, dtype=np.int64),
        np.array([one["cosine"] for one in of]),
        np.array([one["variance"] for one in of], dtype=np.float64),
        np.array([one["cosine_deciles"] for one in of]),
        np.array([one["step"] for one in of], dtype=np.float64),
    )
