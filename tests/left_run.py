"""What a completed run of a cell of a results table leaves, without the run."""

from __future__ import annotations

from typing import Any

from benchmarks.results_cells import RunCell
from server_app.report import SHOWN
from server_app.results import RunResult


def left_by_a_run(cell: RunCell, value: float, **rest: Any) -> None:
    """Every shown metric is ``value``; ``rest`` are other fields of the result."""
    fields: dict[str, Any] = {
        "name": cell.label,
        "folder": cell.folder,
        "dataset": cell.source.name,
        "protocol": cell.protocol,
        "strategy": cell.strategy,
        "title": "",
        "model": "mf",
        "seed": cell.seed,
        "num_users": 1,
        "num_items": 1,
        "rounds": 1,
        "selected_round": 1,
        "select": "last",
        "early_stopped": False,
        "metrics": dict.fromkeys(SHOWN, value),
        "counts": {},
        "popularity": None,
    }
    cell.folder.mkdir(parents=True)
    RunResult(**fields | rest).save()
    cell._stamp.write_text("")
