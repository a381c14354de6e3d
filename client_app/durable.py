"""Renaming a finished file such that it survives a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def put_in_place(unfinished: Path, target: Path) -> None:
    """Rename a finished file over another: after a power cut either is there whole."""
    _synchronise(unfinished)
    unfinished.replace(target)
    _synchronise(target.parent)


def _synchronise(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
