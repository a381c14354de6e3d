"""The SQLite file behind a node's store: opening, checking, one transaction at a time.

Write-ahead logging with ``synchronous=FULL``: a transaction that was acknowledged survives
kill -9 and a power cut, one that was not leaves no trace.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from client_app.durable import put_in_place

SCHEMA_VERSION = 3
APPLICATION_ID = 0x46524731
BUSY_SECONDS = 30.0
OPEN_ATTEMPTS = 200

SCHEMA_1 = """
CREATE TABLE meta(owner TEXT NOT NULL) STRICT;
CREATE TABLE run(
  id INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, layout TEXT NOT NULL,
  row_bytes INTEGER NOT NULL, incarnation INTEGER NOT NULL, last_round INTEGER NOT NULL,
  exact_from INTEGER NOT NULL, exact_rounds TEXT NOT NULL) STRICT;
CREATE TABLE state(
  run INTEGER NOT NULL, user INTEGER NOT NULL, round INTEGER NOT NULL, row BLOB NOT NULL,
  UNIQUE(run, user, round)) STRICT;
CREATE TABLE answer(
  run INTEGER NOT NULL, round INTEGER NOT NULL, digest BLOB NOT NULL, content BLOB NOT NULL,
  PRIMARY KEY(run, round)) STRICT;
"""
SCHEMA_2 = """
CREATE TABLE received(
  run INTEGER NOT NULL, kind TEXT NOT NULL, round INTEGER NOT NULL, digest BLOB NOT NULL,
  config TEXT NOT NULL, content BLOB NOT NULL, PRIMARY KEY(run, kind)) STRICT;
CREATE TABLE forgotten(user INTEGER PRIMARY KEY) STRICT;
"""
SCHEMA_3 = """
CREATE TABLE masking(
  id INTEGER PRIMARY KEY, run INTEGER NOT NULL, what TEXT NOT NULL, session TEXT NOT NULL,
  content TEXT NOT NULL, UNIQUE(run, what, session)) STRICT;
CREATE TABLE unmasked(
  run INTEGER NOT NULL, what TEXT NOT NULL, survivors TEXT NOT NULL, uploaded TEXT NOT NULL,
  PRIMARY KEY(run, what)) STRICT;
"""
STEPS = (SCHEMA_1, SCHEMA_2, SCHEMA_3)
"""What each version adds to the one before."""


class StoreError(RuntimeError):
    """A problem of a node's store; the text names the file and says what it holds now."""


class StoreFile:
    """One node's SQLite file. Usable from several threads and after a fork.

    Raises:
        StoreError: when the file cannot be opened or created, is damaged, has a newer
            schema, or belongs to another shard than ``owner``.

    """

    def __init__(self, path: Path, owner: str) -> None:
        self.path = path
        self._owner = owner
        self._lock = threading.RLock()
        self._pid = -1
        self._connection: sqlite3.Connection | None = None
        with self._lock:
            self._connected()

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    def truncate_log(self) -> None:
        """Fold the write-ahead log into the file and empty it, waiting for others to let go.

        Raises:
            StoreError: when others read or write all the while; the log then still holds what
                was deleted.

        """
        with self._lock, self._guarded():
            (busy, _, _) = self._connected().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise StoreError(
                f"{self.path}: another process has used the file for {BUSY_SECONDS:g} s, so "
                "deleted bytes still lie in its -wal file: end that process, or try again later"
            )

    def copy_to(self, target: Path) -> None:
        """Write a consistent copy, whole or not at all, to a new file.

        Raises:
            StoreError: when there is a file already, or it cannot be written.

        """
        if target.exists():
            raise StoreError(f"{target}: the copy cannot be written (a file exists there)")
        unfinished = target.with_name(f".{target.name}.unfinished")
        try:
            with self._lock:
                unfinished.unlink(missing_ok=True)
                self._connected().execute("VACUUM INTO ?", (str(unfinished),))
            put_in_place(unfinished, target)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"{target}: the copy cannot be written ({error})") from error
        finally:
            unfinished.unlink(missing_ok=True)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent snapshot for several reads."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all or nothing, one writer at a time over all processes."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._lock, self._guarded():
            connection = self._connected()
            with _all_or_nothing(connection, begin):
                yield connection

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"{self.path}: {explain(error)}") from error

    def _connected(self) -> sqlite3.Connection:
        # A connection must not be used in a forked child: the child opens its own.
        if self._connection is None or self._pid != os.getpid():
            with self._guarded():
                self._connection, self._pid = self._open(), os.getpid()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # private from the first byte; its log is made alike
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        connection = sqlite3.connect(
            self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            use_write_ahead_log(connection)
            connection.execute("PRAGMA synchronous=FULL")
            # Rows that are pruned must leave no bytes behind either, or forgetting a user later
            # would not reach them.
            connection.execute("PRAGMA secure_delete=ON")
            self._check_schema(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_schema(self, connection: sqlite3.Connection) -> None:
        if _pragma(connection, "user_version") == 0:
            self._create(connection)
        check_version(connection, self.path)
        if _pragma(connection, "user_version") < SCHEMA_VERSION:
            self._upgrade(connection)
        (owner,) = connection.execute("SELECT owner FROM meta").fetchone()
        if owner != self._owner:
            raise StoreError(
                f"{self.path}: belongs to shard {owner}, not to {self._owner}: "
                "give each node a store-path of its own"
            )

    def _create(self, connection: sqlite3.Connection) -> None:
        with _all_or_nothing(connection):
            empty = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)
            if empty:  # else another process was first, or the file is someone else's
                _execute(connection, SCHEMA_1)
                connection.execute("INSERT INTO meta VALUES (?)", (self._owner,))
                connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
                connection.execute("PRAGMA user_version=1")

    def _upgrade(self, connection: sqlite3.Connection) -> None:
        """Bring an older file up to this version in one transaction; its rows stay."""
        with _all_or_nothing(connection):
            # Another process may have been first.
            for step in STEPS[_pragma(connection, "user_version") :]:
                _execute(connection, step)
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


@contextmanager
def _all_or_nothing(
    connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE"
) -> Iterator[None]:
    """One transaction: committed at the end of the block, undone by an error in it."""
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError unless the file is a store that this version can read."""
    version = _pragma(connection, "user_version")
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise StoreError(f"{path}: this file is not a store of this application")
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path}: written by a newer version of this application "
            f"(schema {version}, this one reads {SCHEMA_VERSION}): update the application"
        )


def use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging; the switch ignores SQLite's own busy timeout."""
    for attempt in range(OPEN_ATTEMPTS):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or attempt == OPEN_ATTEMPTS - 1:
                raise
            time.sleep(0.05)
        else:
            return


def explain(error: Exception) -> str:
    """SQLite's message with what to do about it, on one line."""
    text, advice = str(error), "the last committed state is intact"
    if "full" in text:
        return f"no space left ({text}); {advice}: free some space and try again"
    if "readonly" in text or "read-only" in text.lower():
        return f"the file cannot be written ({text}); {advice}: check its permissions"
    if "malformed" in text or "not a database" in text:
        return f"the file is damaged or not a store ({text}): restore a copy or move it away"
    if "locked" in text:
        return f"another process has held the file for {BUSY_SECONDS:.0f} s ({text}); {advice}"
    if "unable to open" in text or isinstance(error, OSError):
        return f"cannot be opened ({text}): set store-path in --node-config to a writable path"
    return f"{text}; {advice}"


def _execute(connection: sqlite3.Connection, script: str) -> None:
    """The statements of a script, within the transaction that is open."""
    for statement in filter(str.strip, script.split(";")):
        connection.execute(statement)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
