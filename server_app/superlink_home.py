"""Home of the local SuperLink: its folder, its record, its environment variables.

Flower finds local SuperLinks by port alone, keeps the folder and the environment variables
of its first start, and puts that folder first on the import path of Ray workers. So ours
has a home per Python environment, a free port recorded there, and an empty working folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from server_app.connection import Connection

HOST = "127.0.0.1"
RECORD = "superlink.json"
EMPTY = "empty"
"""Working folder of Flower's programs."""


@dataclass(frozen=True)
class SuperLink:
    """A running local SuperLink, as recorded in its home."""

    pid: int
    port: int
    prefix: str
    """Python environment that runs it."""
    versions: str
    """Versions of flwr, ray and torch it was started with."""

    @property
    def connection(self) -> Connection:
        """How to reach it."""
        return Connection(f"{HOST}:{self.port}")


def home_folder() -> Path:
    """Home of this environment's SuperLink, made if absent.

    ``FEDRECGEL_HOME``, else a folder per Python environment in the user's state folder.
    """
    given = os.environ.get("FEDRECGEL_HOME")
    if given:
        home = Path(given).absolute()
    else:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        environment = hashlib.sha256(sys.prefix.encode()).hexdigest()[:12]
        home = Path(state) / "fedrecgel" / environment
    (home / EMPTY).mkdir(parents=True, exist_ok=True)
    return home


def environment(home: Path) -> dict[str, str]:
    """Environment variables of the SuperLink, of ``flwr`` commands and of its runs."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    binaries = str(Path(sys.executable).parent)
    return {
        **env,
        "PATH": f"{binaries}{os.pathsep}{env.get('PATH', os.defpath)}",
        # Flower's programs write emoji, whatever the terminal of the first start can show.
        "PYTHONIOENCODING": "utf-8",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


def program(name: str) -> str:
    """Path of a program of this Python environment."""
    return str(Path(sys.executable).parent / name)


def write_record(home: Path, link: SuperLink) -> None:
    """Record the SuperLink, for us and as the default connection of ``flwr`` commands."""
    write_connection(home, link.connection)
    _replace(home / RECORD, json.dumps(asdict(link)))


def write_connection(home: Path, connection: Connection) -> None:
    """Make it the default connection of ``flwr`` commands in this home."""
    _replace(home / "config.toml", connection.config)


def connection_home(connection: Connection) -> Path:
    """A home for ``flwr`` commands that go to a SuperLink which somebody else started."""
    home = home_folder() / "connections" / connection.key
    (home / EMPTY).mkdir(parents=True, exist_ok=True)
    write_connection(home, connection)
    return home


def read_record(home: Path) -> SuperLink | None:
    """The recorded SuperLink, alive or not; None without a readable record."""
    try:
        return SuperLink(**json.loads((home / RECORD).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def is_ours(link: SuperLink, home: Path) -> bool:
    """Whether the recorded process lives and really is the SuperLink of this home.

    Process ids are reused, so the command line is compared.
    """
    command = command_line(link.pid)
    return "flower-superlink" in command and str(home / "state.db") in command


def command_line(pid: int) -> str:
    """Command line of a process; empty when it is gone or a zombie."""
    proc = Path(f"/proc/{pid}/cmdline")
    if Path("/proc/self/cmdline").exists():
        try:
            return proc.read_text().replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            return ""
    shown = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout


def versions() -> str:
    """Versions of what runs inside the SuperLink and its workers."""
    return " ".join(f"{name} {version(name)}" for name in ("flwr", "ray", "torch"))


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Only one process at a time starts or stops the SuperLink of a home."""
    with (home / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _replace(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)
