"""Each user's ranks after a run: ``user_ranks.npz`` in its folder, and files of that kind.

Present where ``evaluation.user_ranks`` asked for them, for the selected round of the model and
for the popularity ranking. For tests over users, and for figures by groups of users.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from models.metrics import metric_sums
from models.types import IntArray, UserRanks
from server_app.errors import StorageError
from server_app.files import replace_file

__all__ = [
    "UserRanks",
    "load_ranks",
    "load_user_ranks",
    "metrics_of",
    "save_ranks",
    "save_user_ranks",
]

USER_RANKS = "user_ranks.npz"
MODEL, POPULARITY = "model", "popularity"
USERS = "users"
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every entry of a file: equal ranks give equal bytes."""


def save_user_ranks(run_folder: Path, ranks: Mapping[str, UserRanks]) -> None:
    """Write the file of a run atomically; ``ranks`` by ``model`` and ``popularity``."""
    arrays = {f"{who}/{n}": a for who, found in ranks.items() for n, a in _arrays(found).items()}
    replace_file(run_folder / USER_RANKS, packed(arrays))


def load_user_ranks(run_folder: Path) -> dict[str, UserRanks] | None:
    """Ranks of a run by ``model`` and ``popularity``; None where it did not ask for them.

    Raises:
        StorageError: when the file cannot be read or is not one of ours.

    """
    path = run_folder / USER_RANKS
    if not path.exists():
        return None
    arrays = _read(path)
    by_scorer: dict[str, dict[str, IntArray]] = {}
    for name, array in arrays.items():
        who, _, rest = name.partition("/")
        by_scorer.setdefault(who, {})[rest] = array
    return {who: _ranks(path, found) for who, found in by_scorer.items()}


def save_ranks(path: Path, ranks: UserRanks) -> None:
    """Write one scorer's ranks atomically."""
    replace_file(path, to_bytes(ranks))


def load_ranks(path: Path) -> UserRanks:
    """Read what :func:`save_ranks` wrote.

    Raises:
        StorageError: when the file cannot be read or is not one of ours.

    """
    return _ranks(path, _read(path))


def from_bytes(data: bytes, path: Path) -> UserRanks:
    """As :func:`load_ranks`, of the content of the file ``path``."""
    return _ranks(path, _unpacked(path, io.BytesIO(data)))


def to_bytes(ranks: UserRanks) -> bytes:
    """The content of a file of one scorer's ranks."""
    return packed(_arrays(ranks))


def metrics_of(ranks: UserRanks, cutoffs: Sequence[int]) -> dict[str, float]:
    """Means over the users with a held-out item, by the names of a run's result."""
    means = {}
    for kind, ranks_U in sorted(ranks.ranks.items()):
        held_U = torch.from_numpy(ranks_U[ranks_U >= 0] + 1)
        for name, value in metric_sums(held_U, cutoffs).items():
            means[f"{kind}/{name}"] = value / len(held_U)
    return means


def together(parts: Sequence[UserRanks]) -> UserRanks | None:
    """Ranks of all parts' users; None without parts. No user is in two of them.

    A part that lacks a kind of ranking has no user with a held-out item of its split.
    """
    if not parts:
        return None
    users_U = np.concatenate([part.users_U for part in parts])
    order_U = np.argsort(users_U, kind="stable")
    ranks = {}
    for kind in sorted({kind for part in parts for kind in part.ranks}):
        missing = [np.full(len(part), -1, dtype=np.int64) for part in parts]
        found = [part.ranks.get(kind, none) for part, none in zip(parts, missing, strict=True)]
        ranks[kind] = np.concatenate(found)[order_U]
    return UserRanks(users_U[order_U], ranks)


def packed(arrays: Mapping[str, IntArray]) -> bytes:
    """A file for ``numpy.load`` with these arrays, the same bytes for the same arrays."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for name, array in sorted(arrays.items()):
            entry = io.BytesIO()
            np.lib.format.write_array(entry, np.ascontiguousarray(array, "<i8"), (1, 0))
            file.writestr(zipfile.ZipInfo(f"{name}.npy", EPOCH), entry.getvalue())
    return buffer.getvalue()


def _arrays(ranks: UserRanks) -> dict[str, IntArray]:
    return {USERS: ranks.users_U, **ranks.ranks}


def _read(path: Path) -> dict[str, IntArray]:
    return _unpacked(path, path)


def _unpacked(path: Path, source: Path | BinaryIO) -> dict[str, IntArray]:
    try:
        with np.load(source, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise StorageError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def _ranks(path: Path, arrays: Mapping[str, IntArray]) -> UserRanks:
    lengths = {array.shape for array in arrays.values()}
    whole = all(array.dtype == np.int64 and array.ndim == 1 for array in arrays.values())
    if USERS not in arrays or len(lengths) != 1 or not whole:
        raise StorageError(f"{path} holds no users' ranks of this version")
    return UserRanks(arrays[USERS], {n: a for n, a in arrays.items() if n != USERS})
