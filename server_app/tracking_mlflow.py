"""MLflow: one tracked run for a run and all its resumes, in a database file or on a server."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

# Figures of somebody's users are nobody else's business; it is asked for before the import.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from conf.tree import Config
from server_app.callbacks import RunInfo
from server_app.files import replace_json
from server_app.tracking import Tracker

DATABASE, IDENTITY = "mlflow.db", "mlflow.json"
PARAM_BATCH, METRIC_BATCH = 100, 1000
VALUE_LENGTH, TAG_LENGTH = 6000, 5000
"""Limits of MLflow's interface."""
ATTEMPTS, PAUSE_S = 6, 0.5
"""To make the database, which several runs may be doing at once."""
T = TypeVar("T")


class MLflowTracker(Tracker):
    """Logs to ``tracking.mlflow_uri``, or to ``mlflow.db`` beside the runs' folders."""

    name = "mlflow"

    def __init__(self, cfg: Config, folder: Path) -> None:
        super().__init__(cfg, folder)
        self._uri = cfg.tracking.mlflow_uri or f"sqlite:///{folder.parent / DATABASE}"
        self._client: Any = None
        self._run = ""
        self._logged: dict[int, set[str]] = {}
        """By step, names of figures that a broken start logged already."""

    def open(self, info: RunInfo, params: dict[str, object], tags: dict[str, str]) -> None:
        """Go on with the run that the folder names, or begin one and name it there."""
        for noisy in ("mlflow", "alembic"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        self._client = MlflowClient(tracking_uri=self._uri)
        known = self._known()
        self._run = known or self._begun(info)
        if known:
            self._client.update_run(known, status="RUNNING")
            if "error" in self._client.get_run(known).data.tags:
                self._client.delete_tag(known, "error")
            self._logged = self._history()
        self._describe(params, tags)

    def metrics(self, values: dict[str, float], step: int) -> None:
        """Figures at a step; a resume leaves out what is there, which it computes again."""
        now = int(time.time() * 1000)
        there = self._logged.get(step, set())
        named = {metric_name(name): value for name, value in values.items()}
        batch = [Metric(n, v, now, step) for n, v in named.items() if n not in there]
        for part in _parts(batch, METRIC_BATCH):
            self._client.log_batch(self._run, metrics=part)

    def close(self, status: str, tags: dict[str, str]) -> None:
        """The run's status."""
        for key, value in tags.items():
            self._client.set_tag(self._run, key, value[:TAG_LENGTH])
        self._client.set_terminated(self._run, status)

    def _known(self) -> str | None:
        """The tracked run of an earlier start, where it is still there."""
        try:
            found = json.loads((self._folder / IDENTITY).read_text("utf-8"))
            if found["uri"] != self._uri:
                return None
            run = self._client.get_run(found["run"])
        except (FileNotFoundError, ValueError, KeyError):
            return None
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return str(run.info.run_id) if run.info.lifecycle_stage == "active" else None

    def _begun(self, info: RunInfo) -> str:
        run = self._client.create_run(self._experiment(), run_name=info.name)
        identity = {"uri": self._uri, "run": run.info.run_id}
        replace_json(self._folder / IDENTITY, identity)
        return str(run.info.run_id)

    def _experiment(self) -> str:
        name = self._cfg.tracking.mlflow_experiment
        for attempt in range(ATTEMPTS):
            try:
                found = self._client.get_experiment_by_name(name)
                return str(found.experiment_id if found else self._client.create_experiment(name))
            except Exception:
                # Another run may have been quicker, or be making the database's tables.
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(PAUSE_S)
        raise AssertionError("unreachable")

    def _history(self) -> dict[int, set[str]]:
        logged: dict[int, set[str]] = {}
        for name in self._client.get_run(self._run).data.metrics:
            for metric in self._client.get_metric_history(self._run, name):
                logged.setdefault(metric.step, set()).add(name)
        return logged

    def _describe(self, params: Mapping[str, object], tags: Mapping[str, str]) -> None:
        """Settings, which MLflow does not let change: of a resume, other values become tags."""
        there = self._client.get_run(self._run).data.params
        texts = {key: str(value)[:VALUE_LENGTH] for key, value in params.items()}
        new = [Param(key, text) for key, text in texts.items() if key not in there]
        for part in _parts(new, PARAM_BATCH):
            self._client.log_batch(self._run, params=part)
        changed = {f"resumed.{k}": t for k, t in texts.items() if there.get(k, t) != t}
        shown = [RunTag(key, text[:TAG_LENGTH]) for key, text in {**tags, **changed}.items()]
        self._client.log_batch(self._run, tags=shown)


def metric_name(name: str) -> str:
    """``hr@10`` as ``hr_at_10``: MLflow allows no @, nor most other signs."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))


def _parts(values: Sequence[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(values), size):
        yield list(values[start : start + size])
