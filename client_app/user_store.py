"""A node's private rows and answers, by run, user and round.

The state of a user as of round r is its newest row of a round <= r. A commit is one
transaction: the rows of the users just trained, the answer sent to the server, and the
removal of what no resume or recommendation can ask for. Rows never leave this file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from client_app.private_rows import RowBlock, RowLayout
from client_app.received import Kind, Received, get, put
from client_app.retention import (
    RunRow,
    TrainKey,
    as_json,
    drop_answers,
    find_run,
    prune,
    roll_back,
)
from client_app.store_file import StoreError, StoreFile
from models.types import IntArray

FIND_LAYOUT = "SELECT layout FROM run WHERE run_id=?"

ADD_RUN = "INSERT INTO run VALUES (NULL, ?, ?, ?, 0, 0, 0, '[]') ON CONFLICT DO NOTHING"

# CROSS JOIN: SQLite then goes from the wanted users to their rows, by the index.
READ = """
SELECT state.user, state.row FROM json_each(?1) AS wanted
CROSS JOIN state ON state.run=?2 AND state.user=wanted.value AND state.round=(
  SELECT max(round) FROM state AS s WHERE s.run=?2 AND s.user=wanted.value AND s.round<=?3)
"""


WRITE = """
INSERT OR REPLACE INTO state
SELECT ?1, value, ?2, substr(?3, key * ?4 + 1, ?4) FROM json_each(?5)
"""

DROP_FORGOTTEN = """
DELETE FROM state WHERE run=? AND user IN (SELECT user FROM forgotten)
"""

NEWEST_RUN = """
SELECT run_id FROM run WHERE id IN (SELECT run FROM received WHERE kind='model')
ORDER BY id DESC LIMIT 1
"""

LOST = "its private state was never here, or the file was removed or replaced"


class StaleRequestError(StoreError):
    """A request that this node must not train: answered differently before, or outdated."""


class UserStore:
    """The store of one node; one file, opened at once and kept open."""

    def __init__(self, path: Path | str, owner: str) -> None:
        self._file = StoreFile(Path(path), owner)

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def start_run(self, run_id: str, layout: RowLayout) -> None:
        """Register a run, or check that its rows have this layout.

        Raises:
            StoreError: when the run is there with another layout.

        """
        if not self.has_run(run_id):
            with self._file.writing() as db:
                db.execute(ADD_RUN, (run_id, layout.to_json(), layout.row_bytes))
        self.check_run(run_id, layout)

    def check_run(self, run_id: str, layout: RowLayout) -> None:
        """Raise StoreError unless the run is there with this layout."""
        with self._file.reading() as db:
            found = db.execute(FIND_LAYOUT, (run_id,)).fetchone()
        if found is None:
            raise StoreError(f"{self.path}: has no run {run_id}: {LOST}")
        if found != (layout.to_json(),):
            raise StoreError(
                f"{self.path}: run {run_id} has private rows of another layout: "
                "the model or strategy differs from the one it was started with"
            )

    def has_run(self, run_id: str) -> bool:
        """Whether the run was started here."""
        with self._file.reading() as db:
            return db.execute(FIND_LAYOUT, (run_id,)).fetchone() is not None

    def read(
        self, run_id: str, users: IntArray, as_of_round: int
    ) -> tuple[npt.NDArray[np.bool_], bytes]:
        """Which users (U,) have a row as of a round, and those rows' bytes in order of users.

        Raises:
            StoreError: for an unknown run, or a round whose state is no longer kept.

        """
        with self._file.reading() as db:
            run = self._run(db, run_id)
            run.check_kept(as_of_round, self.path)
            found = dict(db.execute(READ, (as_json(users), run.id, as_of_round)))
        has_row_U = np.fromiter((int(u) in found for u in users), dtype=np.bool_, count=len(users))
        return has_row_U, b"".join(found[int(u)] for u in users if int(u) in found)

    def answer(self, run_id: str, key: TrainKey) -> bytes | None:
        """The stored answer to this request, or None when it is to be trained.

        The first request of a resumed server drops the abandoned rounds: see :meth:`resume`.

        Raises:
            StaleRequestError: when the round was trained for another request, or the server
                is an earlier start than one already seen.

        """
        self.resume(run_id, key.incarnation, key.resumed_from)
        with self._file.reading() as db:
            return self._answer(db, self._run(db, run_id), key)

    def resume(self, run_id: str, incarnation: int, known: int) -> None:
        """Drop the rounds newer than ``known`` if this start of the server is new to the node.

        Raises:
            StoreError: when the state of round ``known`` is no longer kept; nothing is dropped.

        """
        with self._file.reading() as db:
            if incarnation <= self._run(db, run_id).incarnation:
                return
        with self._file.writing() as db:
            roll_back(db, self._run(db, run_id), incarnation, known, self.path)

    def commit(
        self,
        run_id: str,
        key: TrainKey,
        users: IntArray,
        rows: RowBlock,
        answer: bytes,
        received: Received | None = None,
    ) -> bytes:
        """Store a round's rows (U, P) and answer; returns the answer that counts.

        ``received``: the shared parameters that the rows were trained with, to be kept too.

        When another process of this node has committed the same request meanwhile, its
        answer is returned and nothing is written. Abandoned rounds of a resumed run are
        removed first, as by :meth:`resume`.

        Raises:
            StaleRequestError: as :meth:`answer`.
            StoreError: when the file cannot be written; the state is as before.

        """
        with self._file.writing() as db:
            run = self._run(db, run_id)
            if rows.shape[0] != len(users) or rows.shape[1] * rows.itemsize != run.row_bytes:
                raise StoreError(f"{self.path}: rows of {rows.shape} do not fit the run's layout")
            run = roll_back(db, run, key.incarnation, key.resumed_from, self.path)
            if (stored := self._answer(db, run, key)) is not None:
                return stored
            block = (rows.tobytes(), run.row_bytes, as_json(users))
            db.execute(WRITE, (run.id, key.round, *block))
            db.execute(DROP_FORGOTTEN, (run.id,))  # one may have been while this was trained
            drop_answers(db, run)  # the new answer then takes the pages of the old one
            db.execute(
                "INSERT OR REPLACE INTO answer VALUES (?, ?, ?, ?)",
                (run.id, key.round, key.digest, answer),
            )
            prune(db, run, key, users)
            if received is not None:
                put(db, run, received)
        return answer

    def receive(self, run_id: str, received: Received) -> None:
        """Keep what the server sent, in place of what it sent before.

        Raises:
            StoreError: when the file cannot be written.

        """
        with self._file.writing() as db:
            put(db, self._run(db, run_id), received)

    def received(self, run_id: str, kind: Kind) -> Received | None:
        """What the server sent last in a run, or None."""
        with self._file.reading() as db:
            return get(db, self._run(db, run_id), kind)

    @contextmanager
    def run_transaction(self, run_id: str) -> Iterator[tuple[sqlite3.Connection, int]]:
        """One transaction that may write, with the run's number; all of it or nothing."""
        with self._file.writing() as db:
            yield db, self._run(db, run_id).id

    def last_round(self, run_id: str) -> int:
        """The last round of a run that was committed here; 0 before the first."""
        with self._file.reading() as db:
            return self._run(db, run_id).last_round

    def newest_run(self) -> str | None:
        """The run of which parameters were received that was started last; None without one."""
        with self._file.reading() as db:
            row = db.execute(NEWEST_RUN).fetchone()
        return None if row is None else str(row[0])

    def trained_users(self, run_id: str) -> IntArray:
        """Users (U,) with a row in a run, ascending."""
        with self._file.reading() as db:
            run = self._run(db, run_id)
            found = db.execute("SELECT DISTINCT user FROM state WHERE run=? ORDER BY 1", (run.id,))
            return np.array([user for (user,) in found], dtype=np.int64)

    def forgotten(self) -> IntArray:
        """Users (U,) who are never to take part again, ascending."""
        with self._file.reading() as db:
            found = db.execute("SELECT user FROM forgotten ORDER BY user")
            return np.array([user for (user,) in found], dtype=np.int64)

    def forget(self, user: int) -> int:
        """Remove a user's rows of all runs, and the answers they went into; returns their number.

        The user is noted as forgotten, and takes no part from now on. The bytes are overwritten
        in the file and gone from its write-ahead log.

        Raises:
            StoreError: when another process has the file in use; where the text speaks of the
                -wal file the rows are removed, but call again to clear their bytes.

        """
        with self._file.writing() as db:
            runs = [
                r for (r,) in db.execute("SELECT DISTINCT run FROM state WHERE user=?", (user,))
            ]
            db.execute("INSERT OR IGNORE INTO forgotten VALUES (?)", (user,))
            removed = db.execute("DELETE FROM state WHERE user=?", (user,)).rowcount
            db.executemany("DELETE FROM answer WHERE run=?", ((run,) for run in runs))
        self._file.truncate_log()
        return removed

    def export(self, target: Path) -> None:
        """Write a consistent copy of the whole store to a new file.

        Raises:
            StoreError: when the target exists or cannot be written.

        """
        self._file.copy_to(target)

    def _run(self, db: sqlite3.Connection, run_id: str) -> RunRow:
        run = find_run(db, run_id)
        if run is None:
            raise StoreError(f"{self.path}: has no run {run_id}: {LOST}")
        return run

    def _answer(self, db: sqlite3.Connection, run: RunRow, key: TrainKey) -> bytes | None:
        if key.incarnation < run.incarnation:
            raise StaleRequestError(
                f"{self.path}: round {key.round} comes from an earlier start of the server "
                f"({key.incarnation}; this node has trained for start {run.incarnation})"
            )
        stored = db.execute(
            "SELECT content FROM answer WHERE run=? AND round=? AND digest=?",
            (run.id, key.round, key.digest),
        ).fetchone()
        if stored is not None:
            return bytes(stored[0])
        if key.round <= run.last_round:
            raise StaleRequestError(
                f"{self.path}: round {key.round} was trained already for another request, or its "
                f"answer is no longer kept (last trained: {run.last_round}); not trained twice"
            )
        return None
