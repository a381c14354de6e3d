"""Trackers that a run can be followed with, as callbacks: TensorBoard and MLflow.

``metrics.jsonl`` is written in any case. A tracker that stops working does not stop the run: what
it missed is kept and offered again at the end. What is sealed until the end is sent at the end.
"""

from __future__ import annotations

import contextlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable
from logging import WARNING
from pathlib import Path

from flwr.common.logger import log

from conf.build import ConfigError
from conf.tree import Config
from server_app.callbacks import Callback, RoundRecord, RunInfo
from server_app.errors import ClientsFailedError, ServerError, StorageError
from server_app.results import RunResult, load_result
from server_app.run_folder import settings_of

PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow"}
"""By tracker, the package that it needs."""
FINISHED, FAILED, STOPPED = "FINISHED", "FAILED", "KILLED"
"""How a tracked run ends, in MLflow's words."""


def chosen(cfg: Config) -> list[str]:
    """Names of the trackers of a configuration."""
    return [name for name in PACKAGES if getattr(cfg.tracking, name)]


def check_installed(cfg: Config) -> None:
    """Refuse a tracker whose package is not there.

    Raises:
        ConfigError: naming the package and how to get it.

    """
    for name in chosen(cfg):
        if importlib.util.find_spec(PACKAGES[name]) is None:
            raise ConfigError(
                f"tracking={name} needs the package {PACKAGES[name]}, which is not installed: "
                "pip install '.[tracking]'"
            )


def trackers(cfg: Config, folder: Path) -> list[Callback]:
    """The callbacks of the chosen trackers; their packages are imported here and nowhere else."""
    found: list[Callback] = []
    if cfg.tracking.tensorboard:
        from server_app.tracking_tensorboard import TensorBoardTracker

        found.append(TensorBoardTracker(cfg, folder))
    if cfg.tracking.mlflow:
        from server_app.tracking_mlflow import MLflowTracker

        found.append(MLflowTracker(cfg, folder))
    return found


class Tracker(Callback, ABC):
    """What all trackers have in common: which figures, when, and what a failure means."""

    name: str

    def __init__(self, cfg: Config, folder: Path) -> None:
        self._cfg, self._folder = cfg, folder
        self._opened = self._down = False
        self._waiting: list[Callable[[], None]] = []

    # ---- what a tracker does ---------------------------------------------------------------
    @abstractmethod
    def open(self, info: RunInfo, params: dict[str, object], tags: dict[str, str]) -> None:
        """Begin a tracked run, or go on with the one that this run's folder belongs to."""

    @abstractmethod
    def metrics(self, values: dict[str, float], step: int) -> None:
        """Log figures at a step."""

    @abstractmethod
    def close(self, status: str, tags: dict[str, str]) -> None:
        """End the tracked run; called once, after all figures."""

    # ---- the callback ----------------------------------------------------------------------
    def on_start(self, info: RunInfo) -> None:
        """Begin.

        Raises:
            StorageError: when the tracker cannot be written to, in one line.

        """
        tags = {
            key: str(getattr(info, key))
            for key in ("dataset", "protocol", "strategy", "model", "seed", "folder")
        }
        try:
            self.open(info, settings_of(self._cfg), tags)
        except Exception as error:
            raise StorageError(f"tracking={self.name}: {_line(error)}") from error
        self._opened = True

    def on_round(self, record: RoundRecord) -> None:
        """Figures of a round, without what is sealed."""
        server_round = record.round
        self._try(lambda: self.metrics(round_figures(record), server_round))
        if record.evaluation is not None and record.evaluated_round is not None:
            ranked, step = dict(record.evaluation), record.evaluated_round
            self._try(lambda: self.metrics(ranked, step))

    def on_end(self, result: RunResult) -> None:
        """The selected round's figures, and success."""
        self._finish(FINISHED, result)

    def on_failure(self, error: BaseException) -> None:
        """Say that the run failed or was stopped; with its figures where it has some."""
        result = None
        if isinstance(error, ClientsFailedError):
            with contextlib.suppress(ServerError):  # the failure is the one to be told
                result = load_result(self._folder)
        status = FAILED if isinstance(error, Exception) else STOPPED
        self._finish(status, result, {"error": _line(error)})

    # ---- failures --------------------------------------------------------------------------
    def _finish(
        self, status: str, result: RunResult | None, tags: dict[str, str] | None = None
    ) -> None:
        if not self._opened:
            return
        self._down = False  # one more attempt at what is waiting
        if result is not None:
            values, step = final_figures(result), result.rounds
            self._try(lambda: self.metrics(values, step))
            tags = {**(tags or {}), "selected_round": str(result.selected_round)}
        said = tags or {}
        self._try(lambda: self.close(status, said))
        if self._waiting:
            log(
                WARNING,
                "tracking=%s has not received all figures; metrics.jsonl and result.json have them",
                self.name,
            )

    def _try(self, step: Callable[[], None]) -> None:
        """Do what is to be done, in order; after a failure everything waits for the end.

        A tracker may take minutes to fail, so that a run would stand still in every round.
        """
        self._waiting.append(step)
        while self._waiting and not self._down:
            try:
                self._waiting[0]()
            except Exception as error:  # noqa: BLE001  whatever a tracker raises
                self._down = True
                log(WARNING, "tracking=%s failed: %s", self.name, _line(error))
            else:
                del self._waiting[0]


def round_figures(record: RoundRecord) -> dict[str, float]:
    """Training figures and the round's cost, by tracked name."""
    figures = {f"train/{name}": value for name, value in record.train.items()}
    figures |= {f"seconds/{part}": value for part, value in record.seconds.items()}
    costs = ("num_users", "bytes_up", "bytes_down", "failures", "dropped_late")
    return figures | {f"round/{key}": float(getattr(record, key)) for key in costs}


def final_figures(result: RunResult) -> dict[str, float]:
    """What the run reports, test figures too, beside popularity's."""
    figures = {f"final/{name}": value for name, value in result.metrics.items()}
    popular = result.popularity or {}
    return figures | {f"popularity/{name}": value for name, value in popular.items()}


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
