"""From one data set to a folder for each node: ``fedrecgel prepare``.

Users keep the indices, and items the order, that a simulation of the same data set gives them,
so a deployment trains the same federation.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client_app import node_folder
from client_app.data import Dataset, load_dataset, shard_bounds, source_path
from client_app.errors import DataError
from client_app.files import read_bytes
from client_app.node_folder import Shard
from conf.tree import Config
from models.types import IntArray


@dataclass(frozen=True)
class _Table:
    """Rows in an order that keeps time within a user; ``stamps`` is text, None for file order."""

    users: IntArray
    items: IntArray
    stamps: list[str] | None


@dataclass(frozen=True)
class Written:
    """One node's folder and what is in it."""

    folder: Path
    num_users: int
    num_rows: int


def distribute(cfg: Config, target: Path, sizes: Sequence[int]) -> list[Written]:
    """Write ``node-000``, ``node-001`` and so on into ``target``; ``sizes`` are users a node.

    ``target`` has a copy of the catalogue too, for the server's side.

    All folders are written or none. Users go to the nodes in the order of their indices.

    Raises:
        DataError: for anything wrong with the data, sizes that do not add up to the number of
            users, or a folder that is there already.

    """
    dataset = load_dataset(cfg)
    _check_sizes(sizes, dataset.num_users)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target} exists already and is not an empty folder")
    unfinished = target.with_name(target.name + ".unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        written = _write_all(cfg, dataset, unfinished, sizes)
        unfinished.replace(target)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror or error}") from None
    return [Written(target / w.folder.name, w.num_users, w.num_rows) for w in written]


def even_sizes(num_users: int, num_nodes: int) -> list[int]:
    """Users of each node where all have about equally many, as in a simulation."""
    if num_nodes > num_users:
        raise DataError(f"{num_nodes} nodes are too many for {num_users} users")
    bounds = [shard_bounds(num_users, index, num_nodes) for index in range(num_nodes)]
    return [hi - lo for lo, hi in bounds]


def shard_key(index: int, count: int) -> str:
    """Key of the ``index``-th of ``count`` shards; ascending keys are ascending indices."""
    return f"{index:06d}-of-{count:06d}"


def _check_sizes(sizes: Sequence[int], num_users: int) -> None:
    if min(sizes, default=0) < 1:
        raise DataError(f"a node hosts one user at least, got sizes {list(sizes)}")
    if sum(sizes) != num_users:
        raise DataError(f"the sizes add up to {sum(sizes)}, but the data has {num_users} users")


def _write_all(cfg: Config, dataset: Dataset, target: Path, sizes: Sequence[int]) -> list[Written]:
    table = _synthetic_table(dataset) if cfg.dataset.synthetic else _file_table(cfg, dataset)
    node_folder.write_catalogue(target, dataset.item_ids, dataset.titles)
    starts, width = np.append(0, np.cumsum(sizes)), max(3, len(str(len(sizes) - 1)))
    written = []
    for index, size in enumerate(sizes):
        folder = target / f"node-{index:0{width}d}"
        folder.mkdir(mode=0o700)
        users = np.arange(starts[index], starts[index] + size)
        shard = _describe(cfg, dataset, table, shard_key(index, len(sizes)))
        written.append(_write_node(folder, shard, dataset, users, table))
        if cfg.protocol.candidates == "notebook":
            np.save(folder / node_folder.CANDIDATES, dataset.candidates("test", users))
    return written


def _describe(cfg: Config, dataset: Dataset, table: _Table, key: str) -> Shard:
    return Shard(
        shard_key=key,
        dataset=cfg.dataset.name,
        num_users=dataset.num_users,
        catalogue=dataset.catalogue,
        time="file_order" if table.stamps is None else "timestamp",
        min_interactions=cfg.protocol.min_interactions,
        duplicates=cfg.protocol.duplicates,
    )


def _write_node(
    folder: Path, shard: Shard, dataset: Dataset, users: IntArray, table: _Table
) -> Written:
    node_folder.write_shard(folder, shard)
    node_folder.write_users(folder, users, dataset.user_ids[users])
    node_folder.write_catalogue(folder, dataset.item_ids, dataset.titles)
    rows = np.flatnonzero((table.users >= users[0]) & (table.users <= users[-1]))
    columns = [
        dataset.user_ids[table.users[rows]].tolist(),
        dataset.item_ids[table.items[rows]].tolist(),
    ]
    if table.stamps is not None:
        columns.append([table.stamps[row] for row in rows])
    node_folder.write_interactions(folder, columns)
    return Written(folder, len(users), len(rows))


def _file_table(cfg: Config, dataset: Dataset) -> _Table:
    """Rows of the file whose users the protocol keeps, repeats included."""
    from client_app.interactions import parse
    from client_app.split import kept_rows

    path = source_path(cfg)
    data = parse(read_bytes(path), cfg.dataset, path)
    kept = kept_rows(data, cfg.protocol)
    _, users = np.unique(data.users[kept], return_inverse=True)
    _, items = np.unique(data.items[kept], return_inverse=True)
    if data.timestamps is None:
        order = np.argsort(data.times[kept], kind="stable")
        return _Table(users[order], items[order], None)
    stamps = data.timestamps[kept].tolist()
    return _Table(users, items, ["" if stamp != stamp else repr(stamp) for stamp in stamps])  # noqa: PLR0124


def _synthetic_table(dataset: Dataset) -> _Table:
    """Training rows, then validation and test rows: all that a split of made-up data keeps."""
    everyone = np.arange(dataset.num_users)
    train = dataset.train_rows(everyone)
    test_U, validation_U = dataset.heldout(everyone).T
    users, items = [train.users], [train.values]
    for held_U in (validation_U, test_U):
        users.append(everyone[held_U >= 0])
        items.append(held_U[held_U >= 0])
    return _Table(np.concatenate(users), np.concatenate(items), None)
