"""An examination of a node's store that changes nothing, also while the node works."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client_app.private_rows import RowLayout
from client_app.received import Received
from client_app.store_file import StoreError, check_version, explain
from client_app.store_reading import reading_only, stamp

SHOWN = 3
"""Problems of a store that its line names."""


@dataclass(frozen=True)
class Report:
    """What is in a store, and what is wrong with it."""

    path: Path
    owner: str = ""
    runs: int = 0
    rows: int = 0
    users: int = 0
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.problems:
            more = len(self.problems) - SHOWN
            shown = "; ".join(self.problems[:SHOWN]) + (f"; and {more} more" if more > 0 else "")
            return f"{self.path}: broken: {shown}"
        return (
            f"{self.path}: sound: shard {self.owner}, {self.runs} runs, {self.rows} rows of "
            f"{self.users} users"
        )


def examine(path: Path) -> Report:
    """Check a store's pages, schema, rows and answers within one snapshot.

    A row must have its run's size and finite numbers and be of a round that the run reached;
    an answer must be readable. The file is opened for reading only. A process that opens the
    store meanwhile can make it look broken, so it is then looked at once more.
    """
    if not path.is_file():
        return Report(path, problems=("there is no such file",))
    before = stamp(path)
    report = _examined(path)
    return report if not report.problems or stamp(path) == before else _examined(path)


def _examined(path: Path) -> Report:
    try:
        with reading_only(path) as db:
            return _report(path, db)
    except (sqlite3.Error, StoreError) as error:
        words = explain(error) if isinstance(error, sqlite3.Error) else str(error)
        return Report(path, problems=(words,))


def _report(path: Path, db: sqlite3.Connection) -> Report:
    check_version(db, path)
    (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        first = str(found).strip().splitlines()[0]
        advice = "restore a copy (fedrecgel import) or move it away"
        return Report(path, problems=(f"the file is damaged ({first}): {advice}",))
    problems = list(_orphans(db))
    runs = db.execute("SELECT id, run_id, layout, row_bytes, last_round FROM run").fetchall()
    for run in runs:
        problems += list(_run(db, *run))
    (owner,) = db.execute("SELECT owner FROM meta").fetchone()
    (rows, users) = db.execute("SELECT count(*), count(DISTINCT user) FROM state").fetchone()
    return Report(path, owner, len(runs), rows, users, tuple(problems))


def _orphans(db: sqlite3.Connection) -> Iterator[str]:
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type='table'")]
    for table in sorted({"state", "answer", "received"} & set(tables)):
        query = f"SELECT count(*) FROM {table} WHERE run NOT IN (SELECT id FROM run)"
        (lost,) = db.execute(query).fetchone()
        if lost:
            yield f"{lost} rows of {table} belong to no run"
    if "forgotten" in tables:
        kept = "SELECT DISTINCT user FROM state WHERE user IN (SELECT user FROM forgotten)"
        for (user,) in db.execute(kept):
            yield f"user {user} was forgotten and has rows"


def _run(
    db: sqlite3.Connection, id_: int, run_id: str, layout: str, row_bytes: int, last_round: int
) -> Iterator[str]:
    where = f"run {run_id[:8]}"
    try:
        numbers = RowLayout.from_json(layout)
    except (ValueError, KeyError, TypeError):
        yield f"{where}: its layout cannot be read"
        return
    if numbers.row_bytes != row_bytes:
        yield f"{where}: rows of {row_bytes} bytes, its layout has {numbers.row_bytes}"
        return
    for user, round_, row in db.execute("SELECT user, round, row FROM state WHERE run=?", (id_,)):
        if len(row) != row_bytes:
            yield f"{where}: user {user}, round {round_}: {len(row)} bytes, not {row_bytes}"
        elif not np.isfinite(numbers.from_bytes(row)).all():
            yield f"{where}: user {user}, round {round_}: infinite or NaN"
        if not 0 < round_ <= last_round:
            yield f"{where}: user {user}, round {round_} of a run that reached {last_round}"
    yield from _answers(db, id_, where)
    yield from _received(db, id_, where)


def _answers(db: sqlite3.Connection, id_: int, where: str) -> Iterator[str]:
    from client_app.training import from_bytes

    for round_, content in db.execute("SELECT round, content FROM answer WHERE run=?", (id_,)):
        try:
            from_bytes(content)
        except Exception as error:  # noqa: BLE001  protobuf and Flower raise many kinds
            yield f"{where}: the answer of round {round_} cannot be read ({type(error).__name__})"


def _received(db: sqlite3.Connection, id_: int, where: str) -> Iterator[str]:
    if not db.execute("SELECT 1 FROM sqlite_schema WHERE name='received'").fetchone():
        return
    query = "SELECT kind, round, config, content FROM received WHERE run=?"
    for kind, *fields in db.execute(query, (id_,)):
        try:
            _ = Received(kind, *fields).tensors
        except StoreError as error:
            yield f"{where}: {kind}: {error}"
