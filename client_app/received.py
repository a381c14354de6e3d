"""What a node last received from the server, kept for use without a network.

A row a run and kind: the shared parameters with the round whose private state belongs to them,
and the item counts of the federation. Kept where a node has data of its own; in a simulation
the server's checkpoints are on the same machine.
"""

from __future__ import annotations

import hashlib
import sqlite3
from dataclasses import dataclass
from typing import Literal

from safetensors import SafetensorError
from safetensors.torch import load, save

from client_app.retention import RunRow
from client_app.store_file import StoreError
from models.types import Tensors

Kind = Literal["model", "popularity"]

PUT = "INSERT OR REPLACE INTO received VALUES (?, ?, ?, ?, ?, ?)"
GET = "SELECT round, config, content FROM received WHERE run=? AND kind=?"
KNOWN = "SELECT digest, round FROM received WHERE run=? AND kind=?"


@dataclass(frozen=True)
class Received:
    """Tensors as they came, and the round whose private state they are to be used with."""

    kind: Kind
    round: int
    config_json: str
    content: bytes

    @classmethod
    def of(cls, kind: Kind, round_: int, config_json: str, tensors: Tensors) -> Received:
        """Pack tensors."""
        packed = save({n: t.detach().contiguous().clone() for n, t in sorted(tensors.items())})
        return cls(kind, round_, config_json, packed)

    @property
    def tensors(self) -> Tensors:
        """The tensors.

        Raises:
            StoreError: when they are damaged.

        """
        try:
            tensors: Tensors = load(self.content)
        except SafetensorError as error:
            raise StoreError(f"the parameters received are damaged: {error}") from error
        return tensors


def put(db: sqlite3.Connection, run: RunRow, received: Received) -> None:
    """Store it in place of what came before; nothing is written where it is the same."""
    digest = hashlib.sha256(received.config_json.encode() + received.content).digest()
    known = db.execute(KNOWN, (run.id, received.kind)).fetchone()
    if known != (digest, received.round):
        values = (received.round, digest, received.config_json, received.content)
        db.execute(PUT, (run.id, received.kind, *values))


def get(db: sqlite3.Connection, run: RunRow, kind: Kind) -> Received | None:
    """What was received last, or None."""
    row = db.execute(GET, (run.id, kind)).fetchone()
    return None if row is None else Received(kind, *row)
