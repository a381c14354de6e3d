"""What a node remembers of the sessions of secure aggregation, in its own store.

A session's secrets are written before anything that rests on them is sent, so a node that is
killed between two stages goes on where it was. Which nodes a sum was unmasked for stays for good.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, dataclass, field, replace

from client_app.user_store import UserStore
from strategies.secagg.crypto import SecAggError
from strategies.secagg.protocol import Scope

SESSIONS_KEPT = 4
"""Of a run: a message of an abandoned session must not push the present one out."""

DROP_OLD = """
DELETE FROM masking WHERE run=?1 AND id NOT IN (
  SELECT id FROM masking WHERE run=?1 ORDER BY id DESC LIMIT ?2)
"""


@dataclass(frozen=True)
class Session:
    """A node's own secrets of a session, and how far it has come; bytes are hexadecimal."""

    cipher_key: str
    mask_key: str
    seed: str
    peers: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Public keys of all nodes, the node itself included, by shard."""
    threshold: int = 0
    sent: dict[str, str] = field(default_factory=dict)
    """Sealed shares that went out, by target."""
    own: tuple[str, str] = ("", "")
    """The node's shares of its own seed and key."""
    received: dict[str, str] = field(default_factory=dict)
    """Sealed shares that came in, by source: with these nodes the upload is masked."""
    uploaded: str = ""
    """Hash of what was masked."""
    seconds: float = -1.0
    """How long the node worked for it the first time."""
    survivors: tuple[str, ...] = ()
    """Nodes that the sum was unmasked for."""


class SessionStore:
    """Sessions of one run in a node's store."""

    def __init__(self, store: UserStore, run_id: str) -> None:
        self._store, self._run_id = store, run_id

    def start(self, scope: Scope, fresh: Session) -> Session:
        """The session as it is known, or ``fresh`` noted as new."""
        with self._store.run_transaction(self._run_id) as (db, run):
            if (found := _find(db, run, scope)) is not None:
                return found
            _write(db, run, scope, fresh)
            db.execute(DROP_OLD, (run, SESSIONS_KEPT))
        return fresh

    def read(self, scope: Scope) -> Session:
        """The session.

        Raises:
            SecAggError: when it is not known here.

        """
        with self._store.run_transaction(self._run_id) as (db, run):
            return _known(db, run, scope)

    def update(self, scope: Scope, **changes: object) -> Session:
        """Set fields that are empty; a session never changes its mind.

        Raises:
            SecAggError: for a field that has another value, or an unknown session.

        """
        with self._store.run_transaction(self._run_id) as (db, run):
            session = _agreeing(_known(db, run, scope), changes)
            _write(db, run, scope, session)
        return session

    def first_time(self, scope: Scope, seconds: float) -> Session:
        """Note how long the node worked, unless that is noted already."""
        with self._store.run_transaction(self._run_id) as (db, run):
            session = _known(db, run, scope)
            if session.seconds < 0:
                session = replace(session, seconds=seconds)
                _write(db, run, scope, session)
        return session

    def unmask(self, scope: Scope, survivors: tuple[str, ...]) -> Session:
        """Note for which nodes the sum is unmasked, once for all sessions of this sum.

        Raises:
            SecAggError: when it was unmasked for others before, or this node sent another part
                then: the difference of the two sums would tell single nodes', or users', parts.

        """
        text = json.dumps(survivors)
        with self._store.run_transaction(self._run_id) as (db, run):
            session = _agreeing(_known(db, run, scope), {"survivors": survivors})
            query = "SELECT survivors, uploaded FROM unmasked WHERE run=? AND what=?"
            before = db.execute(query, (run, scope.what)).fetchone()
            if before not in (None, (text, session.uploaded)):
                other = "for other nodes" if before[0] != text else "with another part of this node"
                raise SecAggError(
                    f"secure aggregation: {scope.what} was unmasked {other} before, and is not a "
                    "second time: the difference of two sums would tell what is in only one"
                )
            row = run, scope.what, text, session.uploaded
            db.execute("INSERT OR IGNORE INTO unmasked VALUES (?, ?, ?, ?)", row)
            _write(db, run, scope, session)
        return session


def _find(db: sqlite3.Connection, run: int, scope: Scope) -> Session | None:
    query = "SELECT content FROM masking WHERE run=? AND what=? AND session=?"
    row = db.execute(query, (run, scope.what, scope.session)).fetchone()
    if row is None:
        return None
    values = json.loads(row[0])
    values["own"], values["survivors"] = tuple(values["own"]), tuple(values["survivors"])
    values["peers"] = {name: tuple(keys) for name, keys in values["peers"].items()}
    return Session(**values)


def _known(db: sqlite3.Connection, run: int, scope: Scope) -> Session:
    session = _find(db, run, scope)
    if session is None:
        raise SecAggError(
            f"secure aggregation: the keys of this session of {scope.what} are not here any more"
        )
    return session


def _agreeing(session: Session, changes: dict[str, object]) -> Session:
    for name, value in changes.items():
        old = getattr(session, name)
        if old not in (type(old)(), ("", ""), value):
            raise SecAggError(
                f"secure aggregation: this session was asked with other values of {name} before, "
                "and answers no second time"
            )
    return replace(session, **changes)  # type: ignore[arg-type]


def _write(db: sqlite3.Connection, run: int, scope: Scope, session: Session) -> None:
    db.execute(
        "INSERT INTO masking(run, what, session, content) VALUES (?, ?, ?, ?) "
        "ON CONFLICT(run, what, session) DO UPDATE SET content=excluded.content",
        (run, scope.what, scope.session, json.dumps(asdict(session))),
    )
