"""Putting an exported store in place of a node's."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import numpy as np

from client_app.doctor import Report, examine
from client_app.durable import put_in_place
from client_app.node_folder import is_node_folder, read_shard
from client_app.store_file import StoreError
from client_app.store_reading import LOGS, reading_only
from client_app.user_store import UserStore
from models.types import IntArray


def install(source: Path, target: Path, *, replace: bool) -> None:
    """Copy ``source`` to ``target``, whole or not at all, after it was found sound.

    Raises:
        StoreError: for a broken source or one with changes in its log, one of another shard than
            the folder's, a target that is there (without ``replace``) or in use, or a disk that
            refuses.

    """
    if target.exists() and not replace:
        raise StoreError(f"{target} is there already: --force replaces it")
    log = source.with_name(source.name + LOGS[0])
    if log.exists() and log.stat().st_size:
        raise StoreError(f"{source}: a node's own store, with a log: `fedrecgel export` copies it")
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        shutil.copyfile(source, unfinished)
        copied = examine(unfinished)
        _check(copied, source, target.parent)
        forgotten = _forgotten(target)
        _fold_log(target)
        put_in_place(unfinished, target)
    except OSError as error:
        raise StoreError(
            f"{target}: cannot be written ({error.strerror}); it is as it was"
        ) from None
    finally:
        unfinished.unlink(missing_ok=True)
    _forget_again(target, copied.owner, forgotten)


def _forgotten(target: Path) -> IntArray:
    """Users whom the store that is replaced has forgotten; none where it cannot be read."""
    try:
        with reading_only(target) as db:
            found = [user for (user,) in db.execute("SELECT user FROM forgotten")]
    except sqlite3.Error:
        found = []
    return np.array(found, dtype=np.int64)


def _forget_again(target: Path, owner: str, users: IntArray) -> None:
    """A copy from before a user was forgotten must not bring the user back."""
    if len(users):
        store = UserStore(target, owner)
        for user in users.tolist():
            store.forget(user)
        store.close()


def _check(copied: Report, source: Path, folder: Path) -> None:
    if copied.problems:
        raise StoreError(f"{source}: broken: {'; '.join(copied.problems)}")
    if is_node_folder(folder) and (owner := read_shard(folder).shard_key) != copied.owner:
        raise StoreError(f"{source} belongs to shard {copied.owner}, {folder} is {owner}")


def _fold_log(target: Path) -> None:
    """Bring what is in the old store's log into its file, so that the log is no part of the new.

    Leaving write-ahead logging needs the file for oneself: with a node at work it is refused.
    """
    if target.exists():
        connection = sqlite3.connect(target, timeout=1.0, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=DELETE").fetchone()
        except sqlite3.OperationalError as error:
            raise StoreError(f"{target} is in use ({error}): stop its node first") from None
        except sqlite3.DatabaseError:
            pass  # a damaged store may be replaced
        finally:
            connection.close()
    for end in LOGS:
        target.with_name(target.name + end).unlink(missing_ok=True)
