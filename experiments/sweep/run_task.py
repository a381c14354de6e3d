"""One run of a sweep: kept where it is complete, continued where it was cut off."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from conf.tree import Config, ConfigError, from_mapping, remarks
from experiments.file_names import STAMP
from experiments.sweep.jobs import Job, data_digest, result_settings
from experiments.sweep.tasks import Report
from server_app.callbacks import Callback, RoundRecord, RunInfo
from server_app.cli_common import flower_log, quiet_flower
from server_app.cli_launch import LOG
from server_app.errors import CheckpointError, RunFolderError
from server_app.files import replace_json
from server_app.initial_items import source_run
from server_app.lock import is_locked, lock_holder
from server_app.results import RESULT
from server_app.run_folder import read_config, read_state

PRIVATE = ("nodes", "strategy")
"""Folders of a run that hold private state and users' tables: no report needs them."""


@dataclass(frozen=True)
class RunTask:
    """A job as a task."""

    job: Job
    anew: bool = False
    """Begin at the first round whatever there is: what failed once for a reason of its own."""
    slim: bool = False
    """Remove private state once the run is complete."""

    @property
    def label(self) -> str:
        """The run's name."""
        return self.job.label

    @property
    def size(self) -> int:
        """Its rounds."""
        return self.job.config.federation.rounds

    @cached_property
    def made_of(self) -> dict[str, Any]:
        """Settings and data."""
        config = self.job.config
        return {"config": result_settings(config), "data": data_digest(config.dataset.path)}

    def is_made(self) -> bool:
        """Whether the run of this configuration and data is complete."""
        folder = self.job.folder
        try:
            done = read_state(folder).status == "completed" and (folder / RESULT).is_file()
        except RunFolderError:
            return False
        return done and self._is_of_this()

    def make(self, report: Report) -> None:
        """Continue the run from its checkpoint where it is the same, else begin it anew.

        Raises:
            ServerError: as from the run; when another process works on it.

        """
        folder, config = self.job.folder, self.job.config
        if folder.is_dir() and is_locked(folder):
            raise RunFolderError(f"{folder} is in use by process {lock_holder(folder)}")
        if not self.anew and self._is_of_this():
            try:
                return self._run(dataclasses.replace(config, resume=True), report)
            except CheckpointError:
                pass  # damaged: the run begins anew
        for each in _folders(config):
            shutil.rmtree(each, ignore_errors=True)
        return self._run(config, report)

    def _run(self, config: Config, report: Report) -> None:
        from server_app.grid import LocalGrid
        from server_app.run import run_server

        quiet_flower()
        grid = LocalGrid(config.federation.num_nodes, workers=config.federation.workers or 1)
        stamp = _Stamp({"data": self.made_of["data"]}, report)
        with flower_log(self.job.folder / LOG, told=remarks(config)):
            run_server(grid, config, [stamp])
        for name in PRIVATE if self.slim else ():
            for folder in _folders(config):
                shutil.rmtree(folder / name, ignore_errors=True)

    def _is_of_this(self) -> bool:
        """Whether the folder holds a run, begun or complete, of this configuration and data."""
        folder = self.job.folder
        try:
            old = result_settings(from_mapping(read_config(folder)))
            stamp = json.loads((folder / STAMP).read_text("utf-8"))
        except (RunFolderError, ConfigError, OSError, ValueError):
            return False
        return bool(old == self.made_of["config"] and stamp["data"] == self.made_of["data"])


class _Stamp(Callback):
    """Notes what data a run is of, and reports its rounds."""

    def __init__(self, stamp: dict[str, Any], report: Callable[[int], None]) -> None:
        self._stamp, self._report = stamp, report

    def on_start(self, info: RunInfo) -> None:
        """Nothing is written before the run has taken its folder."""
        replace_json(info.folder / STAMP, self._stamp)
        self._report(info.first_round - 1)

    def on_round(self, record: RoundRecord) -> None:
        """One more."""
        self._report(record.round)


def _folders(config: Config) -> list[Path]:
    """The run's folder, and that of a run that goes first."""
    first = source_run(config) if config.init.strategy else None
    names = [str(config.name), *([first] if first else [])]
    return [Path(config.output) / name for name in names]
