"""Which rounds' rows a node keeps, and what a resumed server makes it drop.

For each kept round k a user's newest row <= k stays, and so does every row newer than the
last checkpoint: a server resumed there may ask for any of those rounds again.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path

from client_app.store_file import StoreError
from models.types import IntArray

ANSWERS_KEPT = 2
"""Answers of the last acknowledged and of the current round."""

PRUNE_ROWS = """
DELETE FROM state WHERE rowid IN (
  SELECT old.rowid FROM json_each(?1) AS wanted
  CROSS JOIN state AS old ON old.run=?2 AND old.user=wanted.value AND old.round<=?3
  WHERE NOT EXISTS (SELECT 1 FROM json_each(?4) AS keep WHERE old.round=(
    SELECT max(round) FROM state AS s
    WHERE s.run=old.run AND s.user=old.user AND s.round<=keep.value)))
"""

PRUNE_ANSWERS = """
DELETE FROM answer WHERE run=?1 AND round NOT IN (
  SELECT round FROM answer WHERE run=?1 ORDER BY round DESC LIMIT ?2)
"""


@dataclass(frozen=True)
class TrainKey:
    """What identifies a training request of a run.

    ``digest`` covers all that the answer depends on; ``incarnation`` counts the server's
    starts within the run. ``keep_rounds``: the first is the last checkpoint's round, the
    others are rounds whose state may still be asked for.
    """

    round: int
    base_round: int
    incarnation: int
    digest: bytes
    keep_rounds: tuple[int, ...] = ()

    @property
    def checkpoint(self) -> int:
        """Everything newer than this round is kept."""
        return self.keep_rounds[0] if self.keep_rounds else self.base_round

    @property
    def resumed_from(self) -> int:
        """The newest round that the first request of a resumed server vouches for.

        A server resumes from its last checkpoint c and first asks a node in some round
        r > c, with base r - 1 >= c. Rounds c + 1 to r - 1 of the resumed run went without this
        node, so what the node has of them belongs to the abandoned rounds.
        """
        return min(self.checkpoint, self.base_round)


@dataclass(frozen=True)
class RunRow:
    """A run as stored.

    Every user's state is complete as of the rounds from ``exact_from`` on and of
    ``exact_rounds``; of other rounds some rows were dropped.
    """

    id: int
    row_bytes: int
    incarnation: int
    last_round: int
    exact_from: int
    exact_rounds: frozenset[int]

    def is_exact(self, round_: int) -> bool:
        """Whether the state as of this round can be read; round 0 is the initial state."""
        return round_ <= 0 or round_ >= self.exact_from or round_ in self.exact_rounds

    def check_kept(self, round_: int, path: Path) -> None:
        """Raise StoreError, with the file's path, for a round whose state cannot be read."""
        if not self.is_exact(round_):
            raise StoreError(
                f"{path}: the state of round {round_} is no longer kept "
                f"(kept: from {self.exact_from}, and {sorted(self.exact_rounds)})"
            )


def find_run(db: sqlite3.Connection, run_id: str) -> RunRow | None:
    """The run's row, or None."""
    row = db.execute(
        "SELECT id, row_bytes, incarnation, last_round, exact_from, exact_rounds "
        "FROM run WHERE run_id=?",
        (run_id,),
    ).fetchone()
    if row is None:
        return None
    *numbers, exact_rounds = row
    id_, row_bytes, incarnation, last_round, exact_from = numbers
    rounds = frozenset(json.loads(exact_rounds))
    return RunRow(id_, row_bytes, incarnation, last_round, exact_from, rounds)


def roll_back(
    db: sqlite3.Connection, run: RunRow, incarnation: int, known: int, path: Path
) -> RunRow:
    """If this start of the server is new here, drop all rounds newer than ``known``.

    Their answers go too: an answer may rest on private state that is dropped with it.
    """
    if incarnation <= run.incarnation:
        return run
    run.check_kept(known, path)
    for table in ("state", "answer"):
        db.execute(f"DELETE FROM {table} WHERE run=? AND round>?", (run.id, known))
    # With nothing newer than ``known`` left, its state is that of all later rounds too.
    exact_from = min(run.exact_from, known)
    last_round = min(run.last_round, known)
    db.execute(
        "UPDATE run SET incarnation=?, last_round=?, exact_from=? WHERE id=?",
        (incarnation, last_round, exact_from, run.id),
    )
    return replace(run, incarnation=incarnation, last_round=last_round, exact_from=exact_from)


def drop_answers(db: sqlite3.Connection, run: RunRow) -> None:
    """Drop answers, so that with the next one as many are left as are kept."""
    db.execute(PRUNE_ANSWERS, (run.id, ANSWERS_KEPT - 1))


def prune(db: sqlite3.Connection, run: RunRow, key: TrainKey, users: IntArray) -> None:
    """Drop these users' rows that are no longer needed; note what is complete."""
    keep = sorted({key.checkpoint, key.base_round, *key.keep_rounds})
    db.execute(PRUNE_ROWS, (as_json(users), run.id, key.checkpoint, json.dumps(keep)))
    exact_from = max(run.exact_from, key.checkpoint)
    exact = [r for r in keep if run.is_exact(r) and r < exact_from]
    db.execute(
        "UPDATE run SET incarnation=?, last_round=?, exact_from=?, exact_rounds=? WHERE id=?",
        (key.incarnation, key.round, exact_from, json.dumps(exact), run.id),
    )


def as_json(users: IntArray) -> str:
    """User indices for SQLite's ``json_each``: one statement a block of users."""
    return json.dumps(users.tolist())
