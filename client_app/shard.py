"""A node's own data: its folder read, checked against the catalogue, split and cached."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from client_app import node_folder
from client_app.cache import Cache, Prepared, open_entry
from client_app.data import FORMAT, PROTOCOL_FIELDS, Dataset, open_dataset
from client_app.errors import DataError
from client_app.files import read_bytes
from client_app.node_folder import Shard
from conf.tree import Config, DatasetConfig
from models.types import IntArray

if TYPE_CHECKING:  # it imports pandas
    from client_app.interactions import Interactions, Strings

log = logging.getLogger(__name__)

CACHE = "cache"
NAMED_ITEMS = 3
FILES = (
    node_folder.SHARD,
    node_folder.USERS,
    node_folder.CATALOGUE,
    node_folder.INTERACTIONS,
    node_folder.CANDIDATES,
)


@dataclass(frozen=True)
class _Rows:
    """The file's rows as indices: users by their global index, -1 for one that is not listed."""

    data: Interactions
    users: IntArray
    items: IntArray


def load_shard(folder: Path, cfg: Config, cache: Cache | None = None) -> Dataset:
    """The prepared data of a node's folder; the cache is in it unless another is given.

    Raises:
        DataError: for a damaged folder, another data set or protocol than the run's, a
            catalogue or candidates that do not fit, items that are not in the catalogue
            (``dataset.unknown_items=error``), or no rows.

    """
    entry = _entry(folder, cfg, cache)
    return open_dataset(entry, entry.stat().st_ino)


def load_new_users(folder: Path, cfg: Config, cache: Cache | None = None) -> dict[str, IntArray]:
    """Known items, in order of time, of users in the file whom ``users.tsv`` does not list."""
    arrays, _ = open_entry(_entry(folder, cfg, cache))
    ids, indptr, items = arrays["new_ids"], arrays["new_indptr"], arrays["new_items"]
    return {str(raw): items[indptr[at] : indptr[at + 1]] for at, raw in enumerate(ids)}


def _entry(folder: Path, cfg: Config, cache: Cache | None) -> Path:
    shard = node_folder.read_shard(folder)
    check_fits(folder, shard, cfg)
    cache = cache or Cache(folder / CACHE)
    digests = [cache.digest(str(folder / n)) for n in FILES if (folder / n).exists()]
    splitting = {name: getattr(cfg.protocol, name) for name in PROTOCOL_FIELDS}
    reading = [cfg.dataset.bad_rows, cfg.dataset.unknown_items]
    key = json.dumps([FORMAT, "shard", digests, reading, splitting], sort_keys=True)
    return cache.entry(
        hashlib.sha256(key.encode()).hexdigest()[:32], lambda: _prepare(folder, shard, cfg)
    )


def check_fits(folder: Path, shard: Shard, cfg: Config) -> None:
    """Refuse a run of another data set, or of a protocol with other users.

    Raises:
        DataError: saying what the folder was prepared with.

    """
    asked = (
        ("dataset", cfg.dataset.name, shard.dataset),
        ("protocol.min_interactions", cfg.protocol.min_interactions, shard.min_interactions),
        ("protocol.duplicates", cfg.protocol.duplicates, shard.duplicates),
    )
    for key, wanted, found in asked:
        if wanted != found:
            raise DataError(
                f"{folder} was prepared with {key}={found}, the run asks for {key}={wanted}: "
                "prepare it again, or run with the former"
            )


def _prepare(folder: Path, shard: Shard, cfg: Config) -> Prepared:
    # pandas takes half a second to import: only where it is needed.
    from client_app.prepare import catalogue_hash, fingerprint

    item_ids, titles = node_folder.read_catalogue(folder / node_folder.CATALOGUE)
    if catalogue_hash(item_ids) != shard.catalogue:
        raise DataError(
            f"{folder / node_folder.CATALOGUE}: not the catalogue that {node_folder.SHARD} names"
        )
    listed, user_ids = node_folder.read_users(folder)
    if listed[-1] >= shard.num_users:
        raise DataError(
            f"{folder / node_folder.USERS}: user index {listed[-1]} is not below the federation's "
            f"{shard.num_users} users"
        )
    rows, counts = _known_rows(folder, shard, cfg.dataset, (listed, user_ids), item_ids)
    hosted, arrays = _split(folder, cfg, rows, (listed, user_ids), item_ids, counts)
    arrays["titles"] = titles
    facts = {
        "fingerprint": fingerprint({**arrays, "hosted": hosted}),
        "catalogue": shard.catalogue,
        "counts": {**counts, "users_without_rows": len(listed) - len(hosted)},
        "population": shard.num_users,
    }
    log.info("prepared %s: %s", folder, facts["counts"])
    return {**arrays, "hosted": hosted, **_new_users(rows)}, facts


def _known_rows(
    folder: Path,
    shard: Shard,
    reading: DatasetConfig,
    users: tuple[IntArray, Strings],
    item_ids: Strings,
) -> tuple[_Rows, dict[str, int]]:
    """The file's rows of items in the catalogue."""
    from client_app.interactions import parse

    path = str(folder / node_folder.INTERACTIONS)
    config = DatasetConfig(
        shard.dataset, format="inter", time=shard.time, bad_rows=reading.bad_rows
    )
    data = parse(read_bytes(path), config, path)
    index = dict(zip(users[1].tolist(), users[0].tolist(), strict=True))
    place = {item: at for at, item in enumerate(item_ids.tolist())}
    users_of = np.array([index.get(raw, -1) for raw in data.user_ids.tolist()], dtype=np.int64)
    items_of = np.array([place.get(raw, -1) for raw in data.item_ids.tolist()], dtype=np.int64)
    items = items_of[data.items]
    known = items >= 0
    unknown = {"unknown_items": int((~known).sum())}
    if unknown["unknown_items"]:
        _tell_unknown(path, reading, unknown["unknown_items"], data.item_ids[items_of < 0])
    rows = dataclasses.replace(
        data, users=data.users[known], items=items[known], times=data.times[known]
    )
    counts = {**data.counts, **unknown, "unlisted_users": int((users_of < 0).sum())}
    return _Rows(rows, users_of[rows.users], rows.items), counts


def _tell_unknown(path: str, reading: DatasetConfig, rows: int, items: Strings) -> None:
    some = ", ".join(map(repr, items[:NAMED_ITEMS].tolist()))
    more = ", …" if len(items) > NAMED_ITEMS else ""
    what = f"{path}: {rows} rows are of {len(items)} items not in the catalogue ({some}{more})"
    if reading.unknown_items == "error":
        raise DataError(f"{what}; dataset.unknown_items=skip leaves them out")
    log.warning("%s; they are left out", what)


def _split(
    folder: Path,
    cfg: Config,
    rows: _Rows,
    users: tuple[IntArray, Strings],
    item_ids: Strings,
    counts: dict[str, int],
) -> tuple[IntArray, dict[str, Any]]:
    """Global indices of the users that have rows, and the arrays of their split."""
    from client_app.candidates import TEST_STREAM, VALIDATION_STREAM, derived
    from client_app.split import split_numbered

    listed = rows.users >= 0
    if not listed.any():
        raise DataError(f"{folder}: there are no interactions of the users listed")
    hosted, local = np.unique(rows.users[listed], return_inverse=True)
    places = np.searchsorted(users[0], hosted)
    data = dataclasses.replace(
        rows.data,
        users=local,
        items=rows.items[listed],
        times=rows.data.times[listed],
        user_ids=users[1][places],
        item_ids=item_ids,
    )
    parts, size = split_numbered(data, cfg.protocol), cfg.protocol.num_candidates
    counts |= {key: parts.counts[key] for key in ("repeated_rows", "rows_used")}
    if cfg.protocol.candidates == "notebook":
        test = _notebook(folder, places, size)
    else:
        test = derived(parts, size, TEST_STREAM, hosted)
    none = np.empty((len(hosted), 0), dtype=np.int64)
    validation = (
        derived(parts, size, VALIDATION_STREAM, hosted) if cfg.protocol.validation else none
    )
    names = ("user_ids", "item_ids", "indptr", "train_items", "test_U", "validation_U")
    arrays = {name: getattr(parts, name) for name in names}
    return hosted, {
        **arrays,
        "test_candidates_UC": test,
        "validation_candidates_UC": validation,
    }


def _notebook(folder: Path, places: IntArray, size: int) -> IntArray:
    """Candidates drawn where all users were known: the paper's draw goes over all of them."""
    path = folder / node_folder.CANDIDATES
    try:
        candidates: IntArray = np.load(path, allow_pickle=False)[places]
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing, and protocol.candidates=notebook needs it: prepare the nodes "
            "with the same protocol"
        ) from None
    except (OSError, ValueError, IndexError) as error:
        raise DataError(f"{path}: {error}") from None
    if candidates.shape[1] != size:
        raise DataError(f"{path} has {candidates.shape[1]} candidates a user, not {size}")
    return candidates


def _new_users(rows: _Rows) -> Mapping[str, Any]:
    """Users that are not listed, as compressed rows of items in order of time."""
    new = np.flatnonzero(rows.users < 0)
    order = new[np.lexsort((rows.data.times[new], rows.data.users[new]))]
    distinct, starts = np.unique(rows.data.users[order], return_index=True)
    return {
        "new_ids": rows.data.user_ids[distinct],
        "new_indptr": np.append(starts, len(order)).astype(np.int64),
        "new_items": rows.items[order],
    }
