"""Putting an exported store in place of a node's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from client_app.doctor import examine
from client_app.node_folder import is_node_folder, read_shard
from client_app.store_file import StoreError

LOGS = ("-wal", "-shm")
"""SQLite's files beside a store; they belong to the file that was replaced."""


def install(source: Path, target: Path, *, replace: bool) -> None:
    """Copy ``source`` to ``target``, whole or not at all, after it was found sound.

    Raises:
        StoreError: for a broken source, one of another shard than the folder's, a target that is
            there (without ``replace``), or a disk that refuses.

    """
    report = examine(source)
    if report.problems:
        raise StoreError(str(report))
    if is_node_folder(target.parent):
        owner = read_shard(target.parent).shard_key
        if owner != report.owner:
            raise StoreError(
                f"{source} belongs to shard {report.owner}, {target.parent} is {owner}"
            )
    if target.exists() and not replace:
        raise StoreError(f"{target} is there already: --force replaces it")
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        shutil.copyfile(source, unfinished)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        for log in LOGS:
            target.with_name(target.name + log).unlink(missing_ok=True)
        unfinished.replace(target)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise StoreError(
            f"{target}: cannot be written ({error.strerror}); it is as it was"
        ) from None
