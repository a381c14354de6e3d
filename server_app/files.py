"""Writing files so that a crash at any instant leaves the old or the new content."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and force it to disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


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
    write_synced(temporary, data)
    temporary.replace(path)
    sync_folder(path.parent)


def replace_json(path: Path, values: Mapping[str, object]) -> None:
    """Replace a JSON file atomically."""
    replace_file(path, json.dumps(values, indent=2, allow_nan=False).encode() + b"\n")
