"""The file of trials that ``search_beyond.py`` writes, and what they say is best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.beyond_trials import CENTRAL, CentralTrial, Found, Trial
from benchmarks.results_cells import DataSource

OUT = Path(__file__).resolve().parent / "results" / "beyond_search.json"


class Log:
    """Trials by data set and key, in a file that is written after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._trials: dict[str, dict[str, dict[str, Any]]] = {}
        if path.is_file():
            self._trials = json.loads(path.read_text("utf-8"))

    def has(self, trial: Trial) -> bool:
        """Whether it was tried."""
        return trial.key in self._trials.get(trial.source.name, {})

    def note(self, trial: Trial, found: Found) -> None:
        """Keep what was found."""
        of = self._trials.setdefault(trial.source.name, {})
        of[trial.key] = {
            "validation": round(found.validation, 6),
            "seconds": round(found.seconds, 1),
            "peak_mb": round(found.peak_mb),
        }
        if isinstance(trial, CentralTrial):
            of[trial.key]["settings"] = dict(trial.settings)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self._trials, indent=1) + "\n", encoding="utf-8")

    def best(self, source: DataSource, start: str) -> tuple[str, float, int]:
        """Key and figure of the best trial whose key starts so, and of how many it is that.

        The earlier one of equals.

        Raises:
            ValueError: when there is none.

        """
        found = self._trials.get(source.name, {})
        tried = {k: t["validation"] for k, t in found.items() if k.startswith(start)}
        if not tried:
            raise ValueError(f"no trial of {start} on {source.name} in {self.path}")
        key = max(tried, key=lambda k: tried[k])
        return key, tried[key], len(tried)

    def peak_mb(self, source: DataSource, key: str) -> float:
        """Most memory of a trial, in 10⁶ bytes."""
        return float(self._trials[source.name][key]["peak_mb"])

    def chosen_references(self, source: DataSource) -> dict[str, dict[str, Any]]:
        """Settings of every reference that was tried, the best by validation."""
        found = self._trials.get(source.name, {})
        methods = dict.fromkeys(key.split()[1] for key in found if key.startswith(f"{CENTRAL} "))
        best = {m: self.best(source, f"{CENTRAL} {m}")[0] for m in methods}
        return {method: dict(found[key].get("settings", {})) for method, key in best.items()}
