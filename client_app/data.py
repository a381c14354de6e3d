"""A node's view of the data: the split of all users, prepared once and memory-mapped."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from client_app.cache import Cache, Prepared, open_entry
from client_app.candidates import TEST_STREAM, VALIDATION_STREAM, draw_candidates
from client_app.errors import DataError
from client_app.ragged import Ragged, distinct_items
from conf.tree import Config, DatasetConfig, ProtocolConfig, SyntheticConfig
from models.types import History, IntArray

FORMAT = 2
"""Part of the cache key: raise it whenever preparation gives other arrays."""

SHOWN_ONLY = frozenset({"name", "path", "fetch", "sha256", "titles", "synthetic", "unknown_items"})
"""Settings that do not decide the arrays of a whole data set."""
COUNTED_AT_ONCE = 1 << 16
"""Users whose rows are counted together."""
PROTOCOL_FIELDS = (
    "min_interactions",
    "duplicates",
    "ties",
    "validation",
    "num_candidates",
    "candidates",
)

Strings = npt.NDArray[np.str_]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Who trains on what, what is held out, and what it is ranked against.

    ``user_ids`` and ``item_ids`` are raw ids; a user's or item's index is its position. User u
    trains on ``train_items[indptr[u]:indptr[u + 1]]``, sorted, repeats kept. ``test_U`` and
    ``validation_U`` are item indices, -1 for none. Candidates (U, C) are negatives only, sorted;
    (U, 0) for validation where the protocol has none; (0, C) are drawn when asked for, see
    :meth:`candidates`. Arrays are read-only.
    """

    user_ids: Strings
    item_ids: Strings
    indptr: IntArray
    train_items: IntArray
    test_U: IntArray
    validation_U: IntArray
    test_candidates_UC: IntArray
    validation_candidates_UC: IntArray
    titles: Strings | None
    fingerprint: str
    """Hash of all arrays."""
    catalogue: str
    """Hash of ``item_ids`` in order."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What preparation met: rows, bad_rows, below_threshold, repeated_rows, users_dropped,
    rows_used; of a node's own data unknown_items and unlisted_users too."""
    hosted: IntArray | None = None
    """Global index of each row of the arrays, ascending; None: all users, a row is an index."""
    population: int | None = None
    """Users of the whole federation where ``hosted`` are some of them."""

    @property
    def num_users(self) -> int:
        """Users of the federation, N."""
        return len(self.user_ids) if self.population is None else self.population

    def rows(self, users_U: IntArray) -> IntArray:
        """Rows of the arrays for users (U,) given by their global indices.

        Raises:
            DataError: naming a user whose data is not here.

        """
        if self.hosted is None:
            return users_U
        rows_U = np.searchsorted(self.hosted, users_U)
        found_U = rows_U < len(self.hosted)
        found_U[found_U] = self.hosted[rows_U[found_U]] == users_U[found_U]
        if not found_U.all():
            raise DataError(f"the data of user {users_U[~found_U][0]} is not on this node")
        return rows_U

    @property
    def num_items(self) -> int:
        """I, the size of the catalogue."""
        return len(self.item_ids)

    def train_of(self, user: int) -> IntArray:
        """The user's training items, sorted, repeats kept."""
        return self.train_rows(np.array([user])).values

    def heldout_of(self, user: int) -> IntArray:
        """The user's held-out items, sorted and distinct."""
        held = self.heldout(np.array([user]))
        return np.unique(held[held >= 0])

    def train_rows(self, users_U: IntArray) -> Ragged:
        """Training items of users, sorted within each, repeats kept."""
        return Ragged.of(self.indptr, self.train_items, self.rows(users_U))

    def history(self, users_U: IntArray) -> History:
        """Distinct training items of users."""
        items = distinct_items(self.train_rows(users_U), self.num_items)
        return History(items.values, items.lengths_U)

    def train_lengths(self, users_U: IntArray) -> IntArray:
        """Number of training rows (U,) of users."""
        rows_U = self.rows(users_U)
        return self.indptr[rows_U + 1] - self.indptr[rows_U]

    def heldout(self, users_U: IntArray) -> IntArray:
        """(U, 2) test and validation items of users, -1 for none."""
        rows_U = self.rows(users_U)
        return np.stack([self.test_U[rows_U], self.validation_U[rows_U]], axis=1)

    def candidates(self, split: Literal["test", "validation"], users_U: IntArray) -> IntArray:
        """(U, C) items that users' held-out items are ranked against, stored or drawn now."""
        stored = self.test_candidates_UC if split == "test" else self.validation_candidates_UC
        if len(stored):
            return stored[self.rows(users_U)]
        stream = TEST_STREAM if split == "test" else VALIDATION_STREAM
        own = distinct_items(self.train_rows(users_U), self.num_items, self.heldout(users_U))
        return draw_candidates(own, users_U, self.num_items, stored.shape[1], stream)

    def item_counts(self, users: IntArray) -> IntArray:
        """(I,) training rows of each item over the given users, repeats counted."""
        counts_I = np.zeros(self.num_items, dtype=np.int64)
        for start in range(0, len(users), COUNTED_AT_ONCE):
            part = users[start : start + COUNTED_AT_ONCE]
            items = self.train_rows(part).values
            counts_I += np.bincount(items, minlength=self.num_items)
        return counts_I


def load_dataset(cfg: Config) -> Dataset:
    """The prepared data of a configuration, from the cache where it is there.

    Raises:
        DataError: one line about the file, its description or the cache.

    """
    return load(cfg.dataset, cfg.protocol, Cache.at(cfg.cache))


def load(dataset: DatasetConfig, protocol: ProtocolConfig, cache: Cache) -> Dataset:
    """As :func:`load_dataset`, from the parts it needs."""
    if dataset.synthetic is not None:
        return _synthetic(dataset.synthetic, protocol, cache)
    path, titles = _sources(dataset, cache)
    digest = cache.digest(path)
    if dataset.sha256 and digest not in dataset.sha256:
        raise DataError(
            f"{path}: sha256 is {digest}, dataset={dataset.name} expects "
            f"{' or '.join(dataset.sha256)}; to read another copy dataset.sha256=[]"
        )
    digests = [digest] if titles is None else [digest, cache.digest(titles)]

    def prepared() -> Prepared:
        # pandas takes half a second to import: only where it is needed.
        from client_app.prepare import prepare

        return prepare(path, titles, dataset, protocol)

    folder = cache.entry(cache_key(digests, path, dataset, protocol), prepared)
    return open_dataset(folder, folder.stat().st_ino)


def _synthetic(made: SyntheticConfig, protocol: ProtocolConfig, cache: Cache) -> Dataset:
    def prepared() -> Prepared:
        from client_app.synthetic_split import prepare_synthetic

        return prepare_synthetic(made, protocol, cache.root)

    splitting = {name: getattr(protocol, name) for name in PROTOCOL_FIELDS}
    key = json.dumps([FORMAT, "synthetic", dataclasses.asdict(made), splitting], sort_keys=True)
    folder = cache.entry(hashlib.sha256(key.encode()).hexdigest()[:32], prepared)
    return open_dataset(folder, folder.stat().st_ino)


def cache_key(
    digests: list[str], path: str, dataset: DatasetConfig, protocol: ProtocolConfig
) -> str:
    """Hash of everything that decides the prepared arrays."""
    reading = {k: v for k, v in dataclasses.asdict(dataset).items() if k not in SHOWN_ONLY}
    if dataset.format == "auto":
        # The suffix has a say.
        reading["inter"] = path.removesuffix(".gz").endswith(".inter")
    splitting = {name: getattr(protocol, name) for name in PROTOCOL_FIELDS}
    if protocol.candidates == "notebook":
        # Drawn in the interpreter's own order of sets.
        splitting["python"] = sys.implementation.cache_tag
    key = json.dumps([FORMAT, digests, reading, splitting], sort_keys=True)
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def shard_bounds(num_users: int, index: int, num_nodes: int) -> tuple[int, int]:
    """Users [lo, hi) of node ``index``: contiguous shards whose sizes differ by one at most.

    Raises:
        ValueError: unless 0 <= index < num_nodes.

    """
    if not 0 <= index < num_nodes:
        raise ValueError(f"node index {index} is not in [0, {num_nodes})")
    return num_users * index // num_nodes, num_users * (index + 1) // num_nodes


def source_path(cfg: Config) -> str:
    """Path of the configured file, fetched where none is set."""
    return _sources(cfg.dataset, Cache.at(cfg.cache))[0]


def _sources(dataset: DatasetConfig, cache: Cache) -> tuple[str, str | None]:
    """Path of the file, and of the titles where there are any; fetched where no path is set."""
    for key in ("path", "titles"):
        value = getattr(dataset, key)
        if value is not None and not Path(value).is_absolute():
            raise DataError(f"dataset.{key} must be an absolute path, got {value!r}")
    if dataset.path is not None:
        return dataset.path, dataset.titles
    if dataset.fetch is None:
        raise DataError(f"dataset.path is required for dataset={dataset.name}")
    from client_app.fetch import fetch_movielens

    path, titles = fetch_movielens(cache)
    return str(path), dataset.titles or (str(titles) if titles else None)


@functools.lru_cache(maxsize=8)
def open_dataset(folder: Path, inode: int) -> Dataset:
    """The arrays of a cache entry; ``inode``: one that was rebuilt in its place is another."""
    arrays, facts = open_entry(folder)
    return Dataset(
        **{f.name: arrays.get(f.name) for f in dataclasses.fields(Dataset) if f.name not in facts},  # type: ignore[arg-type]
        **facts,
    )
