"""Item tables by user that a server keeps on disk: one file a round, read through a memory map.

N users' tables of M × D floats outgrow memory (MovieLens-1M: 2.9 GB), so they are worked on
some users at a time. A round's file is written once, whole or not at all; a user's table is
the one of the newest file that names the user. What a resumed run must not see, and what no
kept checkpoint can ask for, goes by :meth:`UserTables.forget_after` and
:meth:`UserTables.prune`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from models.types import FloatArray, IntArray
from strategies.table_files import SUFFIX, RoundFile, read_tables, write_tables

BLOCK_VALUES = 1 << 22
"""Values of tables held in memory at once by :meth:`UserTables.blocks`: 16 MiB of float32."""
NO_TABLE = -1
"""Row of a user who has no table from this round on."""


@dataclass(frozen=True)
class _Version:
    round: int
    row: int
    stamp: int
    """Different for any two puts, also of one round."""


class UserTables:
    """The tables (I, D) of users by round, in a folder of their own.

    Opening a folder reads which users its files name; leftovers of an interrupted write are
    removed.
    """

    def __init__(self, folder: Path, durable: bool = True) -> None:
        """``durable`` off: files need not outlast the machine's crash, and are written faster."""
        self._folder, self._durable = folder, durable
        self._files: dict[int, RoundFile] = {}
        self._versions: dict[int, list[_Version]] = {}
        self._stamps = 0
        for path in sorted(folder.glob(f".*{SUFFIX}.tmp")):
            path.unlink()
        for path in sorted(folder.glob(f"round-*{SUFFIX}")):
            self._index(
                int(path.name.removeprefix("round-").removesuffix(SUFFIX)), read_tables(path)
            )

    # ---- writing -------------------------------------------------------------------------
    def put(
        self,
        round_: int,
        users_U: IntArray,
        tables_GID: FloatArray,
        row_of_U: IntArray | None = None,
    ) -> None:
        """Keep these users' tables from this round on; what was put for it or later is dropped.

        ``row_of_U`` is each user's row of ``tables_GID``, several may have the same; by default
        each has its own. ``NO_TABLE`` ends what a user had.

        Raises:
            ValueError: for users that repeat, or rows that do not exist.

        """
        rows_U = np.arange(len(users_U)) if row_of_U is None else row_of_U
        if len(np.unique(users_U)) != len(users_U) or len(rows_U) != len(users_U):
            raise ValueError("users must be distinct, with a row each")
        if len(rows_U) and not NO_TABLE <= rows_U.min() <= rows_U.max() < len(tables_GID):
            raise ValueError(f"rows must lie in {NO_TABLE}..{len(tables_GID) - 1}")
        self.forget_after(round_ - 1)
        entries_2U = np.stack([users_U, rows_U]).astype(np.int64)
        tables = np.ascontiguousarray(tables_GID, dtype=np.float32)
        self._index(
            round_, write_tables(self._path(round_), RoundFile(entries_2U, tables), self._durable)
        )

    def forget_after(self, round_: int) -> None:
        """Drop everything newer than this round, for a run that goes on from there."""
        for newer in [number for number in self._files if number > round_]:
            self._path(newer).unlink()
            del self._files[newer]
        for user in list(self._versions):
            self._set(user, [v for v in self._versions[user] if v.round <= round_])

    def prune(self, rounds: Sequence[int]) -> None:
        """Drop what neither the state after one of these rounds nor the newest one needs.

        A file goes when nothing of it is needed, and is rewritten when at most half of its tables
        are. Every removal leaves a valid folder, so it may be interrupted anywhere.
        """
        for user, versions in list(self._versions.items()):
            ends = [v.round for v in versions]
            kept = {bisect_right(ends, round_) - 1 for round_ in rounds}
            newer = range(bisect_right(ends, max(rounds, default=0)), len(versions))
            self._set(user, [v for k, v in enumerate(versions) if k in kept or k in newer])
        needed: dict[int, list[tuple[int, int]]] = {number: [] for number in self._files}
        for user, versions in sorted(self._versions.items()):
            for version in versions:
                needed[version.round].append((user, version.row))
        for number, entries in needed.items():
            self._shrink(number, entries)

    # ---- reading -------------------------------------------------------------------------
    def users(self) -> IntArray:
        """All users that have a table, ascending."""
        have = [user for user, versions in self._versions.items() if versions[-1].row != NO_TABLE]
        return np.array(sorted(have), dtype=np.int64)

    def stamps(self, users_U: Iterable[int]) -> IntArray:
        """A number for each user's present table that no other table has had in this process."""
        return np.array([self._versions[int(user)][-1].stamp for user in users_U], dtype=np.int64)

    def latest(self, users_U: IntArray) -> tuple[FloatArray, IntArray]:
        """Copies of the users' tables (U, I, D), and the round of each.

        Raises:
            KeyError: for a user without a table.

        """
        found = [self._latest(int(user)) for user in users_U]
        tables = [self._files[v.round].tables_GX[v.row] for v in found]
        return np.stack(tables), np.array([v.round for v in found], dtype=np.int64)

    def tables(self, users: Iterable[int], round_: int | None = None) -> dict[int, FloatArray]:
        """The table (I, D) of each of these users that has one; users of one row share a copy.

        ``round_``: as they were after this round, one that :meth:`prune` was to keep.
        """
        copies: dict[tuple[int, int], FloatArray] = {}
        found: dict[int, FloatArray] = {}
        for user in users:
            own = self._versions.get(user, [])
            last = [v for v in own if round_ is None or v.round <= round_][-1:]
            for version in [v for v in last if v.row != NO_TABLE]:
                key = (version.round, version.row)
                if key not in copies:
                    copies[key] = np.array(self._files[version.round].tables_GX[version.row])
                found[user] = copies[key]
        return found

    def blocks(self, users_U: IntArray) -> Iterator[tuple[slice, FloatArray]]:
        """The users' tables (B, I · D) some at a time, each block with its place among them.

        How users fall into blocks hangs on their number alone, and not on the files.
        """
        if not len(users_U):
            return
        first = self._latest(int(users_U[0]))
        size = max(1, BLOCK_VALUES // max(1, self._files[first.round].tables_GX[0].size))
        for start in range(0, len(users_U), size):
            part = slice(start, min(start + size, len(users_U)))
            tables, _ = self.latest(users_U[part])
            yield part, tables.reshape(len(tables), -1)

    def gram(self, rows_U: IntArray, columns_V: IntArray) -> npt.NDArray[np.float64]:
        """Inner products (U, V) of users' tables as vectors.

        In float64: a product of float32 values is exact in it, and sums of it err by 1e-13.
        """
        out_UV = np.empty((len(rows_U), len(columns_V)))
        for own, tables_BX in self.blocks(rows_U):
            wide_BX = tables_BX.astype(np.float64)
            for other, others_CX in self.blocks(columns_V):
                out_UV[own, other] = wide_BX @ others_CX.astype(np.float64).T
        return out_UV

    def weighted_sums(
        self, weights_KU: npt.NDArray[np.float64], users_U: IntArray
    ) -> Iterator[tuple[slice, FloatArray]]:
        """Sums (B, I · D) of the users' tables, some of the K at a time, with their places.

        Raises:
            KeyError: for a user without a table.

        """
        weights = weights_KU.astype(np.float32)
        for first in range(0, len(weights), 64):
            part, total = slice(first, min(first + 64, len(weights))), None
            for block, tables_BX in self.blocks(users_U):
                term = weights[part, block] @ tables_BX
                total = term if total is None else np.add(total, term, out=total)
            if total is not None:
                yield part, total

    # ---- files ---------------------------------------------------------------------------
    def _latest(self, user: int) -> _Version:
        version = self._versions[user][-1]
        if version.row == NO_TABLE:
            raise KeyError(user)
        return version

    def _set(self, user: int, versions: list[_Version]) -> None:
        if versions:
            self._versions[user] = versions
        else:
            self._versions.pop(user, None)

    def _index(self, round_: int, file: RoundFile) -> None:
        self._files[round_] = file
        for user, row in file.entries_2U.T.tolist():
            self._stamps += 1
            self._versions.setdefault(user, []).append(_Version(round_, row, self._stamps))

    def _shrink(self, round_: int, entries: list[tuple[int, int]]) -> None:
        rows = sorted({row for _, row in entries} - {NO_TABLE})
        old = self._files[round_]
        if not entries:
            del self._files[round_]
            self._path(round_).unlink()
        elif len(rows) < len(old.tables_GX) and 2 * len(rows) <= len(old.tables_GX):
            places = {row: place for place, row in enumerate(rows)} | {NO_TABLE: NO_TABLE}
            entries_2U = np.array([(user, places[row]) for user, row in entries]).T
            kept = RoundFile(entries_2U, old.tables_GX[rows])
            self._files[round_] = write_tables(self._path(round_), kept, self._durable)
            for user, row in entries:
                own = self._versions[user]
                at = next(k for k, v in enumerate(own) if v.round == round_)
                own[at] = _Version(round_, places[row], own[at].stamp)

    def _path(self, round_: int) -> Path:
        return self._folder / f"round-{round_:09d}{SUFFIX}"
