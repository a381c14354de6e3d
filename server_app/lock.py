"""The lock of a run's folder: who writes the run, and whether anybody does."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from server_app.errors import RunFolderError

LOCK = "lock"
LOCK_PATIENCE_S, LOCK_PAUSE_S = 0.5, 0.01


def is_locked(folder: Path) -> bool:
    """Whether a process holds the run's lock now.

    A shared lock on a file opened for reading: who looks excludes nobody else who looks,
    writes nothing, and holds up a run that starts at this instant for no longer than this.
    """
    try:
        with (folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def lock_holder(folder: Path) -> int | None:
    """Process id that the run's lock names, alive or not."""
    word = (folder / LOCK).read_text().split()[-1:]
    return int(word[0]) if word and word[0].isdecimal() else None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run's lock; the system releases it when the process ends, however it ends.

    Raises:
        RunFolderError: naming the process that holds it.

    """
    with (folder / LOCK).open("a+") as file:
        if not _lock_soon(file):
            file.seek(0)
            raise RunFolderError(
                f"{folder} is in use by another process ({file.read().strip() or 'unknown'})"
            )
        file.seek(0)
        file.truncate()
        file.write(f"pid {os.getpid()}\n")
        file.flush()
        yield


def _lock_soon(file: TextIO) -> bool:
    """Lock within LOCK_PATIENCE_S: a probe of :func:`is_locked` is over long before."""
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOCK_PAUSE_S)
