"""Start one run on the configured grid, follow it to its end, and tell success from failure."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from conf.tree import Config, remarks
from server_app import superlink
from server_app.callbacks import METRICS, read_metrics
from server_app.cli_common import flower_log, quiet_flower
from server_app.connection import Connection
from server_app.errors import RunFolderError, RunStoppedError, ServerError, SuperLinkError
from server_app.flower_run import FlowerRun, FlowerStatus, Site
from server_app.lock import is_locked, lock_holder
from server_app.progress import RoundProgress
from server_app.results import RESULT, RunResult, load_result
from server_app.run_folder import read_state
from server_app.staging import stage
from server_app.superlink_home import connection_home, home_folder, is_ours

POLL_S, STATUS_S, STOP_S = 0.25, 1.0, 30.0
LOG = "flwr.log"


class RunFailedError(ServerError):
    """The run did not complete; the message is the first error of it."""


def launch(
    overrides: Sequence[str],
    config: Config,
    console: Console,
    connection: Connection | None = None,
) -> RunResult | None:
    """Run ``config``, which ``overrides`` compose to, and return its result.

    ``connection``: the SuperLink of a deployment. Where it is on another machine, so is the
    run's folder: then the result is None, and the log says where.

    Raises:
        ServerError: when the run failed or could not be started.
        RunStoppedError: when it was stopped from elsewhere.
        KeyboardInterrupt: after the run was stopped by Ctrl-C.

    """
    quiet_flower()
    label = f"{config.strategy_name} on {config.dataset.name}, seed {config.seed}"
    earlier = read_metrics(Path(config.output) / str(config.name))
    with RoundProgress(label, config.federation.rounds, console, earlier) as progress:
        if config.federation.grid == "local":
            return _in_process(config, progress)
        return _by_flower(overrides, config, progress, _site(connection))


def _site(connection: Connection | None) -> Site:
    """A deployment's SuperLink, or the local one that simulates; started if there is none."""
    if connection is None:
        link, home = superlink.ensure(), home_folder()
        return Site(link.connection, home, True, lambda: is_ours(link, home))
    if not connection.is_healthy():
        secure = "" if connection.root_certificates else " (with TLS it needs --root-certificates)"
        raise SuperLinkError(f"no SuperLink answers at {connection.address}{secure}")
    return Site(connection, connection_home(connection), False, connection.is_healthy)


def _in_process(config: Config, progress: RoundProgress) -> RunResult:
    from server_app.concurrency import local_workers
    from server_app.grid import LocalGrid
    from server_app.run import run_server

    log = Path(config.output) / str(config.name) / LOG
    with flower_log(log, told=remarks(config)):
        grid = LocalGrid(config.federation.num_nodes, workers=local_workers(config))
        return run_server(grid, config, [progress])


def _by_flower(
    overrides: Sequence[str], config: Config, progress: RoundProgress, site: Site
) -> RunResult | None:
    """``None``: the run's folder is on another machine, the SuperLink's."""
    home, folder = site.home, Path(config.output) / str(config.name)
    with FlowerRun.submitted(site, stage(home), overrides, config) as run:
        try:
            status = _follow(run, folder, progress)
            _refuse_stopped(status)
        except KeyboardInterrupt:
            run.stop()
            _end_process(folder)
            raise
        except RunStoppedError:
            _end_process(folder)
            with contextlib.suppress(SuperLinkError):  # it may have ended with the run
                _keep_log(run, folder, home)
            raise
        except SuperLinkError:
            if site.is_alive():
                raise
            _end_process(folder)
            raise RunStoppedError("its SuperLink has ended") from None
        log = _keep_log(run, folder, home)
    if status.sub_status != "completed":
        raise RunFailedError(f"{_first_error(folder, status)} (log: {log})")
    if not site.simulates and not (folder / RESULT).exists():
        return None
    return load_result(folder)


def _follow(run: FlowerRun, folder: Path, progress: RoundProgress) -> FlowerStatus:
    """Show every round until Flower says that the run is finished."""
    # Lines that are there already belong to the part that a resumed run continues.
    seen = max((int(str(r["round"])) for r in read_metrics(folder)), default=0)
    size, asked = -1, 0.0
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


def _refuse_stopped(status: FlowerStatus) -> None:
    if status.sub_status == "stopped":
        raise RunStoppedError("Flower was asked to stop it")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1


def _end_process(folder: Path) -> None:
    """End the process that still trains a stopped run, and wait until it is gone.

    Flower marks the run as stopped at once, but its process notices at its next heartbeat
    only. Until then it holds the run's lock, which names it.
    """
    deadline = time.monotonic() + STOP_S
    while folder.is_dir() and is_locked(folder) and time.monotonic() < deadline:
        pid = lock_holder(folder)
        if pid is not None:
            superlink.end_run(pid)
        time.sleep(POLL_S)


def _keep_log(run: FlowerRun, folder: Path, home: Path) -> Path:
    """Save the log beside the results; in our home when the run made no folder."""
    path = folder / LOG if folder.is_dir() else home / f"run-{run.run_id}.log"
    text = run.log()
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:  # the run may have failed because its folder cannot be written
        path = home / f"run-{run.run_id}.log"
        path.write_text(text, encoding="utf-8")
    return path


def _first_error(folder: Path, status: FlowerStatus) -> str:
    """The run's own error where it left one, else Flower's; its first line."""
    try:
        text = read_state(folder).error or ""
    except RunFolderError:
        text = ""
    lines = (text or status.details or "the run failed without a reason").strip().splitlines()
    return lines[0].removeprefix("Simulation failed with exception: ")
