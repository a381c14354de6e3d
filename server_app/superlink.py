"""Start, reuse and stop the local SuperLink."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from server_app.errors import ServerError
from server_app.superlink_home import (
    HOST,
    RECORD,
    SuperLink,
    environment,
    free_port,
    home_folder,
    is_ours,
    locked,
    read_record,
    versions,
    write_record,
)

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
START_ATTEMPTS = 3


class SuperLinkError(ServerError):
    """The local SuperLink cannot be started, reached or stopped."""


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
            if _healthy(found.port):
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
        if _healthy(port):
            return started
        time.sleep(0.05)
    process.kill()
    process.wait()
    return None


def _command(home: Path, port: int) -> list[str]:
    program = str(Path(sys.executable).parent / "flower-superlink")
    where = ["--host", HOST, "--port", str(port)]
    files = ["--database", str(home / "state.db"), "--log-file", str(home / "superlink.log")]
    return [program, "--insecure", "--simulation", *where, *files]


def _terminate(found: SuperLink, home: Path) -> None:
    """SIGTERM, then SIGKILL; its workers end with their parent."""
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


def _healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://{HOST}:{port}/health", timeout=2.0).is_success
    except httpx.HTTPError:
        return False


def _foreign(found: SuperLink, home: Path) -> str:
    return (
        f"the SuperLink in {home} (pid {found.pid}) runs in {found.prefix} with "
        f"{found.versions}, this is {sys.prefix} with {versions()}; "
        "end it with `fedrecgel stop`, then run again"
    )
