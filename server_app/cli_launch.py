"""Start one run on the configured grid, follow it to its end, and tell success from failure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from conf.tree import Config
from server_app import superlink
from server_app.callbacks import METRICS, read_metrics
from server_app.errors import RunFolderError, ServerError
from server_app.flower_run import FlowerRun, FlowerStatus
from server_app.progress import RoundProgress
from server_app.results import RunResult, load_result
from server_app.run_folder import read_state
from server_app.staging import stage
from server_app.superlink_home import home_folder

POLL_S, STATUS_S, STOP_S = 0.25, 1.0, 30.0
LOG = "flwr.log"


class RunFailedError(ServerError):
    """The run did not complete; the message is the first error of it."""


def launch(overrides: Sequence[str], config: Config, console: Console) -> RunResult:
    """Run ``config``, which ``overrides`` compose to, and return its result.

    Raises:
        ServerError: when the run failed or could not be started.
        KeyboardInterrupt: after the run was stopped by Ctrl-C.

    """
    label = f"{config.strategy_name} on {config.dataset.name}, seed {config.seed}"
    with RoundProgress(label, config.federation.rounds, console) as progress:
        if config.federation.grid == "local":
            return _in_process(config, progress)
        return _by_flower(overrides, config, progress)


def _in_process(config: Config, progress: RoundProgress) -> RunResult:
    from server_app.grid import LocalGrid
    from server_app.run import run_server

    return run_server(LocalGrid(config.federation.num_nodes), config, [progress])


def _by_flower(overrides: Sequence[str], config: Config, progress: RoundProgress) -> RunResult:
    home, folder = home_folder(), Path(config.output) / str(config.name)
    link = superlink.ensure()
    with FlowerRun.submitted(link, home, stage(home), overrides, config) as run:
        try:
            status = _follow(run, folder, progress)
        except KeyboardInterrupt:
            run.stop()
            _await_end(run)
            raise
        log = _keep_log(run, folder, home)
    if status.sub_status != "completed":
        raise RunFailedError(f"{_first_error(folder, status)} (log: {log})")
    return load_result(folder)


def _follow(run: FlowerRun, folder: Path, progress: RoundProgress) -> FlowerStatus:
    """Show every round until Flower says that the run is finished."""
    seen, size, asked = 0, -1, 0.0
    while True:
        status = None
        if time.monotonic() - asked >= STATUS_S:
            status, asked = run.status(), time.monotonic()
        now = _size(folder / METRICS)
        if now != size:
            size = now
            for record in read_metrics(folder):
                if int(str(record["round"])) > seen:
                    seen = int(str(record["round"]))
                    progress.update(record)
        if status is not None and status.status == "finished":
            return status
        time.sleep(POLL_S)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1


def _await_end(run: FlowerRun) -> None:
    deadline = time.monotonic() + STOP_S
    while run.status().status != "finished" and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _keep_log(run: FlowerRun, folder: Path, home: Path) -> Path:
    """Save the log beside the results; in our home when the run made no folder."""
    path = folder / LOG if folder.is_dir() else home / f"run-{run.run_id}.log"
    path.write_text(run.log(), encoding="utf-8")
    return path


def _first_error(folder: Path, status: FlowerStatus) -> str:
    """The run's own error where it left one, else Flower's; its first line."""
    try:
        text = read_state(folder).error or ""
    except RunFolderError:
        text = ""
    if status.sub_status == "stopped":
        text = "the run was stopped"
    lines = (text or status.details or "the run failed without a reason").strip().splitlines()
    return lines[0]
