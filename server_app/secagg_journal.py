"""Which nodes each sum was unmasked for, what the protocol cost, and what the server saw.

``secagg.jsonl`` is never cut back: a resumed run sums the same rounds over the same nodes, since
the difference of two sums would be single nodes' parts.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from server_app.exchange import Courier
from server_app.files import named
from server_app.records import read_records
from strategies.secagg.fixed_point import FixedPoint
from strategies.secagg.payload import Payload, Vectors, decoded
from strategies.secagg.records import Upload

JOURNAL, SEEN = "secagg.jsonl", "secagg"


@dataclass
class Costs:
    """Of the exchanges beside the uploads: seconds, bytes; sums made, nodes that dropped out."""

    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    sums: int = 0
    dropped: int = 0

    @contextmanager
    def measuring(self, courier: Courier) -> Iterator[None]:
        """Add what the block takes and sends."""
        started, up, down = time.perf_counter(), courier.bytes_up, courier.bytes_down
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started
            self.bytes_up += courier.bytes_up - up
            self.bytes_down += courier.bytes_down - down

    def take(self) -> dict[str, float]:
        """The figures so far, and start anew."""
        taken = dict(vars(self))
        self.__init__()  # type: ignore[misc]
        return taken


class Journal:
    """The file of a run."""

    def __init__(self, folder: Path, *, keep_uploads: bool = False) -> None:
        self._path, self._seen = folder / JOURNAL, folder / SEEN
        self._keep_uploads = keep_uploads
        lines = read_records(self._path) if self._path.exists() else []
        self._survivors = {str(line["sum"]): _names(line["survivors"]) for line in lines}

    def survivors(self, what: str) -> tuple[str, ...] | None:
        """The nodes that a sum was unmasked for, or None before."""
        return self._survivors.get(what)

    def note(self, what: str, survivors: tuple[str, ...]) -> None:
        """Write down for which nodes a sum is about to be unmasked; it is on the disk after."""
        if self._survivors.get(what) == survivors:
            return
        line = json.dumps({"sum": what, "survivors": survivors}) + "\n"
        with named(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._survivors[what] = survivors

    def keep(self, what: str, uploads: Iterable[Upload]) -> None:
        """Keep masked uploads for audits, where that is asked for."""
        if not self._keep_uploads:
            return
        folder = self._seen / what.replace("/", "-")
        folder.mkdir(parents=True, exist_ok=True)
        for upload in uploads:
            with named(folder), (folder / f"{upload.shard_key}.npz").open("wb") as file:
                np.savez(
                    file,
                    tensors=upload.vectors.tensors,
                    figures=upload.vectors.figures,
                    layout=np.array(upload.layout),
                )


def seen_by_server(folder: Path, what: str, number: FixedPoint) -> dict[str, Payload]:
    """By shard: what the server saw of a sum, each upload read as if it had no masks.

    ``folder`` is the run's, whose configuration had ``privacy.secagg.keep_uploads=true``; ``what``
    is ``train/ROUND``, ``evaluate/SCORER/ROUND`` or ``item_counts``. Tensors have the names and
    shapes of the update (``update/NAME``, ``rows/NAME``), as float64.
    """
    found = {}
    for path in sorted((folder / SEEN / what.replace("/", "-")).glob("*.npz")):
        with np.load(path) as arrays:
            vectors = Vectors(arrays["tensors"], arrays["figures"])
            found[path.stem] = decoded(vectors, str(arrays["layout"]), number)
    return found


def _names(values: object) -> tuple[str, ...]:
    assert isinstance(values, list)
    return tuple(str(value) for value in values)
