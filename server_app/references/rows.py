"""A reference's row of a results table, as an object, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from server_app.report import SHOWN, standard_error
from server_app.tables import FittedTable, Row

SELECTION = "validation/full/ndcg@10"
"""What ``--tune`` maximises."""


@dataclass(frozen=True)
class Trial:
    """Settings that were tried, and what validation said of them."""

    settings: dict[str, Any]
    validation: float
    """NDCG@10 on the validation items, full ranking."""
    seconds: float
    """Of the fit."""


@dataclass(frozen=True)
class ReferenceRow:
    """One method fitted once. Metrics are means over users, by the names of a run's result."""

    method: str
    title: str
    implementation: str
    """Whose code computed, such as ``implicit 0.7.3`` or ``own (torch)``."""
    settings: dict[str, Any]
    dataset: str
    protocol: str
    seed: int
    num_users: int
    num_items: int
    metrics: dict[str, float]
    """``test/sampled/hr@10`` and so on, validation where there is one, catalogue statistics."""
    counts: dict[str, float]
    """Users behind each metric."""
    seconds_fit: float
    seconds_rank: float
    trials: tuple[Trial, ...] = ()
    """What ``--tune`` tried; empty where the settings were given."""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def reference_table(rows: Sequence[ReferenceRow]) -> FittedTable:
    """A row a method, under the data set's and the protocol's name; there is at least one row."""
    first = rows[0]
    return FittedTable(
        title=f"{first.dataset}, protocol {first.protocol}: references, nothing federated",
        keys=["reference", "implementation"],
        figures=[*SHOWN.values(), "seconds"],
        rows=[Row([row.method, row.implementation], _figures(row)) for row in rows],
        notes=[
            [f"Seed {first.seed}", f"{first.num_users} users", f"{first.num_items} items"],
            ["HR and NDCG in per cent", "± standard error over users", "seconds of the fit alone"],
            *([_told(row)] for row in rows if row.settings),
        ],
    )


def _figures(row: ReferenceRow) -> list[str]:
    cells = [_cell(name, row.metrics.get(name), row.counts) for name in SHOWN]
    return [*cells, f"{row.seconds_fit:.1f}"]


def _cell(name: str, value: float | None, counts: Mapping[str, float]) -> str:
    if value is None:
        return "–"
    error = f" ± {100 * standard_error(value, counts[name]):.2f}" if "/hr@" in name else ""
    return f"{100 * value:.2f}{error}"


def _told(row: ReferenceRow) -> str:
    """The settings, and how they came about."""
    given = {key: value for key, value in row.settings.items() if value is not None}
    settings = ", ".join(f"{key}={value}" for key, value in given.items())
    chosen = f", best of {len(row.trials)} by NDCG@10 on validation" if row.trials else ""
    return f"{row.method}: {settings}{chosen}"
