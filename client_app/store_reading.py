"""Reading a node's store without a trace: for examinations, also while the node works."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from client_app.store_file import BUSY_SECONDS, StoreError, check_version, explain

LOGS = ("-wal", "-shm")
"""SQLite's files beside a store: its log, and the index of that."""


@contextmanager
def reading_only(path: Path) -> Iterator[sqlite3.Connection]:
    """One snapshot of a store that is opened for reading only and never made.

    Nothing is written. (Of a store in use SQLite notes its readers in the index beside it.) SQLite
    would make an empty log where there is none, so without a log the file is read as it lies.
    Whoever does this should look again if a process opened the store meanwhile: :func:`stamp`.
    """
    log, index = (path.with_name(path.name + end) for end in LOGS)
    at_rest = not log.exists() or not (index.exists() or os.access(path.parent, os.W_OK))
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if at_rest else ''}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("BEGIN")
        yield connection
    finally:
        connection.close()


def stamp(path: Path) -> tuple[object, ...]:
    """What tells whether a store was written to: time and size of the file and of its log."""
    files = (path, path.with_name(path.name + LOGS[0]))
    return tuple(
        (s.st_ino, s.st_mtime_ns, s.st_size) for f in files if f.exists() for s in [f.stat()]
    )


def owner_of(path: Path) -> str:
    """The shard key that a store belongs to.

    Raises:
        StoreError: when the file is not a store.

    """
    try:
        with reading_only(path) as connection:
            check_version(connection, path)
            return str(connection.execute("SELECT owner FROM meta").fetchone()[0])
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {explain(error)}") from error
