"""The data folder of one node, as ``fedrecgel prepare`` writes it.

``interactions.inter`` (a RecBole atomic file with raw ids), ``users.tsv`` (global index and raw
id of each listed user), ``catalogue.tsv`` (item id and title, in the order of item indices, the
same on all nodes) and ``shard.json``. Raw user ids are in this folder and nowhere else.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from client_app.errors import DataError
from client_app.files import decode, read_bytes
from client_app.interactions import Strings
from conf.tree import ConfigError, build
from models.types import IntArray

FORMAT = 1
SHARD, USERS, CATALOGUE = "shard.json", "users.tsv", "catalogue.tsv"
INTERACTIONS, CANDIDATES = "interactions.inter", "candidates.npy"


@dataclass(frozen=True)
class Shard:
    """What ``shard.json`` says of a node's share of the federation."""

    shard_key: str
    """Name of the share; nodes are summed up in the order of their keys."""
    dataset: str
    """Name of the data set; a run of another one is refused."""
    num_users: int
    """Users of the whole federation, N."""
    catalogue: str
    """Hash of the item ids in order."""
    time: Literal["timestamp", "file_order"]
    """Where the order of a user's rows in time comes from."""
    min_interactions: int
    duplicates: str
    """Rules of the protocol that decided who is a user of the federation."""
    format: int = FORMAT


def is_node_folder(path: Path) -> bool:
    """Whether a path is a folder that ``fedrecgel prepare`` wrote."""
    return (path / SHARD).is_file()


def read_shard(folder: Path) -> Shard:
    """The description of a node's share.

    Raises:
        DataError: where it is missing, damaged or of a newer format.

    """
    path = folder / SHARD
    try:
        shard = build(Shard, json.loads(read_bytes(str(path))), SHARD)
    except (ValueError, ConfigError) as error:
        raise DataError(f"{path}: not a node's description: {error}") from None
    if shard.format != FORMAT:
        raise DataError(f"{path}: format {shard.format}; this version reads format {FORMAT}")
    return shard


def read_users(folder: Path) -> tuple[IntArray, Strings]:
    """Global indices, ascending, and raw ids of the listed users.

    Raises:
        DataError: ``file:line: what`` for a bad line, an index or id that is there twice.

    """
    path = folder / USERS
    indices, ids = list[int](), list[str]()
    for number, fields in _lines(path, 2):
        if not fields[0].isdecimal():
            raise DataError(f"{path}:{number}: {fields[0]!r} is not a user's index")
        indices.append(int(fields[0]))
        ids.append(fields[1])
    if not indices or len(set(indices)) < len(indices) or len(set(ids)) < len(ids):
        raise DataError(f"{path}: users must be listed, each index and id once")
    order = np.argsort(indices)
    return np.array(indices, dtype=np.int64)[order], np.array(ids, dtype=np.str_)[order]


def read_catalogue(path: Path) -> tuple[Strings, Strings]:
    """Item ids in the order of item indices, and titles, '' for an item without one.

    ``path`` is a ``catalogue.tsv``.

    Raises:
        DataError: ``file:line: what`` for a bad line, or an id that is there twice.

    """
    rows = [fields for _, fields in _lines(path, 2)]
    ids = [item for item, _ in rows]
    if not ids or len(set(ids)) < len(ids):
        raise DataError(f"{path}: items must be listed, each id once")
    return np.array(ids, dtype=np.str_), np.array([title for _, title in rows], dtype=np.str_)


def write_shard(folder: Path, shard: Shard) -> None:
    """Write ``shard.json``."""
    text = json.dumps(dataclasses.asdict(shard), indent=2) + "\n"
    (folder / SHARD).write_text(text, encoding="utf-8")


def write_users(folder: Path, indices: IntArray, ids: Strings) -> None:
    """Write ``users.tsv``."""
    _write(folder / USERS, zip(map(str, indices.tolist()), ids.tolist(), strict=True))


def write_catalogue(folder: Path, ids: Strings, titles: Strings | None) -> None:
    """Write ``catalogue.tsv``."""
    shown = [""] * len(ids) if titles is None else [" ".join(t.split()) for t in titles.tolist()]
    _write(folder / CATALOGUE, zip(ids.tolist(), shown, strict=True))


def write_interactions(folder: Path, columns: Sequence[Sequence[str]]) -> None:
    """Write ``interactions.inter``: users, items and, if given, timestamps."""
    names = ("user_id:token", "item_id:token", "timestamp:float")[: len(columns)]
    _write(folder / INTERACTIONS, [names, *zip(*columns, strict=True)])


def _write(path: Path, rows: Iterable[Sequence[str]]) -> None:
    lines = []
    for fields in rows:
        if any(mark in field for field in fields for mark in "\t\n\r"):
            raise DataError(f"{path.name}: an id holds a tab or a line break: {fields!r}")
        lines.append("\t".join(fields) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def _lines(path: Path, width: int) -> Iterable[tuple[int, list[str]]]:
    text = decode(read_bytes(str(path)), "utf-8", str(path)).replace("\r\n", "\n")
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.split("\t")
        if not line:
            continue
        if len(fields) != width:
            raise DataError(f"{path}:{number}: {len(fields)} fields, expected {width}")
        yield number, fields
