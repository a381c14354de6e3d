"""Files of item tables: whole or not there, and read through a memory map.

A file is two arrays in NumPy's own format, one after the other: users with the row of each,
int64, and the rows' tables, float32.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.types import FloatArray, IntArray

SUFFIX = ".tables"


@dataclass(frozen=True)
class RoundFile:
    """``entries_2U``: users, and the row of each among ``tables_GX`` (G tables)."""

    entries_2U: IntArray
    tables_GX: FloatArray


def write_tables(path: Path, content: RoundFile, durable: bool = True) -> RoundFile:
    """Write a file so that a crash leaves the old one or the new one; returns it as mapped.

    ``durable``: a crash of the whole machine as well, by forcing it to disk.

    Raises:
        OSError: when the folder cannot be written to, for example for a full disk.

    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            for array in (content.entries_2U, content.tables_GX):
                ordered = np.ascontiguousarray(array)
                np.lib.format.write_array(file, ordered, version=(1, 0), allow_pickle=False)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(path.parent)
    return read_tables(path)


def read_tables(path: Path) -> RoundFile:
    """Open a file; its tables are read from disk when they are looked at.

    Raises:
        ValueError: for a file that is damaged or cut short.

    """
    with path.open("rb") as file:
        entries_2U: Any = np.lib.format.read_array(file, allow_pickle=False)
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        if 0 in shape:  # nothing to map
            return RoundFile(entries_2U, np.empty(shape, dtype))
        return RoundFile(entries_2U, np.memmap(path, dtype, "r", file.tell(), shape))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
