"""The data cache on a disk: prepared once by whichever process comes first, then shared.

An entry is a folder of ``.npy`` arrays with a manifest of their sizes. It is written beside
its place under a file lock and renamed into place, so it is whole or absent.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from client_app.errors import DataError
from client_app.files import file_on_disk, read_bytes

MANIFEST = "manifest.json"

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
Prepared = tuple[Arrays, Mapping[str, Any]]
"""Arrays by name, and facts about them that JSON can hold."""


@dataclass(frozen=True)
class Cache:
    """Prepared data, hashes of files already read and downloads, under one folder."""

    root: Path

    @classmethod
    def at(cls, setting: str) -> Cache:
        """The folder of the setting ``cache``, or the user's cache directory where empty.

        Raises:
            DataError: for a relative path.

        """
        if setting:
            if not Path(setting).is_absolute():
                raise DataError(f"cache must be an absolute path, got {setting!r}")
            return cls(Path(setting))
        home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return cls(Path(home) / "fedrecgel")

    def digest(self, path: str) -> str:
        """sha256 of the file's unpacked content; not computed again while the file is unchanged.

        Raises:
            DataError: when the file cannot be read.

        """
        stamp = _stamp(path)
        note = self.root / "digests" / f"{_sha256(path.encode())}.json"
        known = _read_json(note)
        if known.get("stamp") == stamp:
            return str(known["sha256"])
        digest = _sha256(read_bytes(path))
        with self.lock(note.stem), self._reported():
            write_atomically(note, json.dumps({"stamp": stamp, "sha256": digest}).encode())
        return digest

    def entry(self, key: str, prepare: Callable[[], Prepared]) -> Path:
        """Folder of the arrays for ``key``, prepared first unless a whole one is there.

        Raises:
            DataError: from ``prepare``, or when the cache cannot be written.

        """
        folder = self.root / "prepared" / key
        if is_whole(folder):
            return folder
        with self.lock(key):
            if not is_whole(folder):
                self._install(folder, prepare())
        return folder

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold the lock ``name`` against all other processes that use this cache."""
        with self._reported():
            folder = self.root / "locks"
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _install(self, folder: Path, prepared: Prepared) -> None:
        arrays, facts = prepared
        # The lock is ours, so these can only be the leftovers of a killed process.
        unfinished, replaced = (folder.with_suffix(s) for s in (".unfinished", ".replaced"))
        with self._reported():
            for leftover in (unfinished, replaced):
                shutil.rmtree(leftover, ignore_errors=True)
            unfinished.mkdir(parents=True)
            _write_entry(unfinished, arrays, facts)
            if folder.exists():
                folder.rename(replaced)
            unfinished.rename(folder)
            shutil.rmtree(replaced, ignore_errors=True)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(
                f"the data cache {self.root} cannot be written: {error.strerror or error}; "
                "choose another folder with cache=/absolute/path"
            ) from None


def is_whole(folder: Path) -> bool:
    """Whether every file of the entry is there with the size its manifest states."""
    sizes = _read_json(folder / MANIFEST).get("sizes")
    if not isinstance(sizes, dict):
        return False
    try:
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except OSError:
        return False


def open_entry(folder: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Arrays of an entry, memory-mapped and read-only, and its facts."""
    manifest = _read_json(folder / MANIFEST)
    arrays = {Path(n).stem: _open_array(folder / n) for n in manifest["sizes"]}
    return arrays, manifest["facts"]


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all. The caller holds a lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_bytes(content)
    unfinished.replace(path)


def _write_entry(folder: Path, arrays: Arrays, facts: Mapping[str, Any]) -> None:
    sizes = {}
    for name, array in arrays.items():
        with (folder / f"{name}.npy").open("wb") as file:
            np.save(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
            sizes[f"{name}.npy"] = file.tell()
    write_atomically(folder / MANIFEST, json.dumps({"sizes": sizes, "facts": facts}).encode())


def _open_array(path: Path) -> Array:
    # A plain view: slicing an np.memmap is several times slower.
    plain: Array = np.asarray(np.load(path, mmap_mode="r"))
    return plain


def _stamp(path: str) -> list[int]:
    """Size, times and inode: what changes when a file is written or replaced."""
    try:
        status = file_on_disk(path).stat()
    except OSError as error:
        raise DataError(f"{file_on_disk(path)}: {error.strerror}") from None
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _read_json(path: Path) -> dict[str, Any]:
    """Content of a JSON object; empty where the file is absent or damaged."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
