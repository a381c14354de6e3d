"""Start, reuse and stop the local SuperLink."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from server_app.control import stop_active_runs
from server_app.errors import SuperLinkError
from server_app.processes import descendants, end_trees, process
from server_app.superlink_home import (
    HOST,
    RECORD,
    SuperLink,
    command_line,
    environment,
    free_port,
    home_folder,
    is_ours,
    locked,
    program,
    read_record,
    versions,
    write_record,
)

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
RUN_GRACE_S = 10.0
PROGRAMS = ("flwr-simulation", "flwr-serverapp")
"""Programs of a run: a simulation, whose Ray processes descend from it, and a deployment's."""
START_ATTEMPTS = 3


def ensure() -> SuperLink:
    """The running SuperLink of this environment; started if there is none.

    Raises:
        SuperLinkError: when it does not start, or belongs to another Python environment.

    """
    home = home_folder()
    with locked(home):
        found = read_record(home)
        if found is not None and is_ours(found, home):
            if (found.prefix, found.versions) != (sys.prefix, versions()):
                raise SuperLinkError(_foreign(found, home))
            if found.connection.is_healthy():
                return found
            _terminate(found, home)
        return _start(home)


def running() -> SuperLink | None:
    """The recorded SuperLink if its process lives."""
    home = home_folder()
    found = read_record(home)
    return found if found is not None and is_ours(found, home) else None


def stop() -> SuperLink | None:
    """End the recorded SuperLink and its runs; None when there is none.

    Only a process whose command line carries this home is ended.
    """
    home = home_folder()
    with locked(home):
        found = running()
        if found is not None:
            _terminate(found, home)
        (home / RECORD).unlink(missing_ok=True)
    return found


def _start(home: Path) -> SuperLink:
    for _ in range(START_ATTEMPTS):
        started = _launch(home, free_port())
        if started is not None:
            return started
    raise SuperLinkError(f"the local SuperLink does not start; see {home / 'superlink.log'}")


def _launch(home: Path, port: int) -> SuperLink | None:
    """One attempt; None when the process ended or stayed silent (a port lost to a rival)."""
    process = subprocess.Popen(
        _command(home, port),
        cwd=home / "empty",
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    started = SuperLink(process.pid, port, sys.prefix, versions())
    write_record(home, started)
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        if started.connection.is_healthy():
            return started
        time.sleep(0.05)
    process.kill()
    process.wait()
    return None


def _command(home: Path, port: int) -> list[str]:
    where = ["--host", HOST, "--port", str(port)]
    files = ["--database", str(home / "state.db"), "--log-file", str(home / "superlink.log")]
    return [program("flower-superlink"), "--insecure", "--simulation", *where, *files]


def end_run(pid: int) -> None:
    """End the process of a run and its Ray processes; nothing if it is no run's process."""
    found = process(pid)
    if found is not None and _is_run(pid):
        end_trees([found], RUN_GRACE_S)


def _is_run(pid: int) -> bool:
    command = command_line(pid)
    return any(program in command for program in PROGRAMS)


def _end_runs(found: SuperLink) -> None:
    """End the runs of a SuperLink: they would outlive it, and train on.

    Flower is told first, so that it starts none that waits. Where it does not answer, the
    processes are ended all the same: they descend from the SuperLink's.
    """
    if found.connection.is_healthy():
        with contextlib.suppress(SuperLinkError):
            stop_active_runs(found.connection)
    root = process(found.pid)
    below = set() if root is None else descendants([root])
    end_trees([p for p in below if _is_run(p.pid)], RUN_GRACE_S)


def _terminate(found: SuperLink, home: Path) -> None:
    """End its runs, then the SuperLink: SIGTERM, then SIGKILL; its executor ends with it."""
    _end_runs(found)
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(found.pid, sign)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            if not is_ours(found, home):
                return
            time.sleep(0.05)
    raise SuperLinkError(f"the local SuperLink (pid {found.pid}) does not end")


def _foreign(found: SuperLink, home: Path) -> str:
    return (
        f"the SuperLink in {home} (pid {found.pid}) runs in {found.prefix} with "
        f"{found.versions}, this is {sys.prefix} with {versions()}; "
        "end it with `fedrecgel stop`, then run again"
    )
