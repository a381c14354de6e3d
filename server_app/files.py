"""Writing files so that a crash at any instant leaves the old or the new content."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and force it to disk."""
    with named(path), path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Errors of the system name the file: those of writing do not by themselves."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def sync_folder(folder: Path) -> None:
    """Force a folder's entries (creations, renames) to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Replace ``path`` atomically; a reader sees the old or the new content."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        write_synced(temporary, data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def replace_json(path: Path, values: Mapping[str, object]) -> None:
    """Replace a JSON file atomically."""
    replace_file(path, json.dumps(values, indent=2, allow_nan=False).encode() + b"\n")
