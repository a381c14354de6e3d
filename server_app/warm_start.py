"""Start of a SuperNode whose ClientApp processes need not import torch for every message."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from server_app.processes import process
from server_app.superlink_home import program

CLIENT = "flwr-clientapp"
SHIM, SERVER = "warm_shim.py", "warm_server.py"


def is_possible() -> bool:
    """Whether this system has what a warm start is made of (Linux has)."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


def warmed(env: Mapping[str, str]) -> dict[str, str]:
    """Start a warm server as a child of this process; the environment in which it is found.

    The server ends with this process, whatever ends that.
    """
    folder = _folder()
    socket, here = folder / "socket", Path(__file__).parent
    stand_in = folder / CLIENT
    command = [sys.executable, "-I", "-S", str(here / SHIM), str(socket), program(CLIENT)]
    stand_in.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    stand_in.chmod(0o700)
    subprocess.Popen(
        [sys.executable, "-I", str(here / SERVER), str(socket), str(os.getpid())],
        # Its threads would forbid to fork. Torch has threads of its own, as configured.
        env={**env, "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
    )
    return {**env, "PATH": f"{folder}{os.pathsep}{env.get('PATH', os.defpath)}"}


def _folder() -> Path:
    """A folder for this process that only this user can enter; those of ended ones are removed.

    Not in Flower's home: the path of a socket may have no more than a hundred characters.
    """
    root = Path(tempfile.gettempdir()) / f"fedrecgel-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    status = root.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        return Path(tempfile.mkdtemp(prefix="fedrecgel-"))
    for left in root.iterdir():
        if left.name.isdecimal() and process(int(left.name)) is None:
            shutil.rmtree(left, ignore_errors=True)
    folder = root / str(os.getpid())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    return folder
