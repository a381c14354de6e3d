"""Start of a SuperNode whose ClientApp processes need not import torch for every message."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from server_app.superlink_home import program

CLIENT = "flwr-clientapp"
SHIM, SERVER = "warm_shim.py", "warm_server.py"


def is_possible() -> bool:
    """Whether this system has what a warm start is made of (Linux has)."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


def warmed(env: Mapping[str, str]) -> dict[str, str]:
    """Start a warm server as a child of this process; the environment in which it is found.

    The server ends with this process. Its folder, which only this user can enter, is removed
    by nobody: it holds a socket and a script of two lines.
    """
    folder = Path(tempfile.mkdtemp(prefix="fedrecgel-warm-"))
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
