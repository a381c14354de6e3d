"""What a process keeps between messages: configuration, data, strategy, stores, decoded arrays.

A simulation worker answers for many nodes and rounds, so everything that messages have in
common is made once a process and kept in small caches.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TypeVar

import numpy as np
import torch
from flwr.app import ArrayRecord

from client_app.data import Dataset, load_dataset, shard_bounds
from client_app.device import device_of
from client_app.private_state import PrivateState, UnknownRun
from client_app.user_store import UserStore
from conf.fingerprint import PACKAGES, code_fingerprint, package_folder
from conf.tree import Config, build_strategy, from_json
from models.types import IntArray, Tensors
from strategies.base import RecStrategy
from strategies.codec import from_arrays
from strategies.messages import Header

OPEN_STORES, DECODED = 64, 4
OWN_PATHS = {"data-path": "dataset", "cache-path": "cache"}
"""Keys of ``--node-config`` for a node whose data lies elsewhere than the server's."""
K = TypeVar("K")
V = TypeVar("V")


class NodeError(RuntimeError):
    """A request that the node cannot serve; the text says what to change."""


@dataclass(frozen=True)
class Node:
    """One node in one run: its shard of users and everything to train and rank them."""

    shard_key: str
    users: IntArray
    """Global indices, ascending."""
    cfg: Config
    dataset: Dataset
    strategy: RecStrategy
    state: PrivateState

    def part(self, users: IntArray | None) -> IntArray:
        """The users of a request in ascending order; all of the node where none are named.

        Raises:
            NodeError: for no users, a repeated one, or users of other nodes.

        """
        if users is None:
            return self.users
        ordered = np.unique(users)
        if len(ordered) != len(users) or not len(users):
            raise NodeError(f"shard {self.shard_key}: users must be distinct and at least one")
        foreign = ordered[(ordered < self.users[0]) | (ordered > self.users[-1])]
        if len(foreign):
            raise NodeError(
                f"shard {self.shard_key} hosts users {self.users[0]} to {self.users[-1]}, "
                f"not user {foreign[0]}"
            )
        return ordered


class Recent(OrderedDict[K, V]):
    """A dictionary of the most recently used entries; ``size`` of them stay."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def fetch(self, key: K) -> V | None:
        """The entry, now the most recent one, or None."""
        if key in self:
            self.move_to_end(key)
        return self.get(key)

    def keep(self, key: K, value: V) -> list[V]:
        """Add an entry; returns those that had to go."""
        self[key] = value
        self.move_to_end(key)
        return [self.popitem(last=False)[1] for _ in range(len(self) - self._size)]


_lock = Lock()
"""Guards the caches below: nodes of an in-process grid may work at the same time."""
_stores: Recent[tuple[Path, str], tuple[int, UserStore]] = Recent(OPEN_STORES)
_decoded: Recent[bytes, Tensors] = Recent(DECODED)


def open_node(
    node_config: Mapping[str, object], header: Header, *, unknown_run: UnknownRun = "start"
) -> Node:
    """The node that ``node_config`` describes, in the run of a request's header.

    A node starts a run when it introduces itself at the run's beginning. Later a store that
    does not know the run is an error: going on would silently start its users afresh.

    Raises:
        NodeError: for other code than the server's, a missing or impossible partition-id, more
            nodes than users, or no place for the store.
        ConfigError, DataError, StoreError, DeviceError: one line each, from where they arise.

    """
    check_code(header)
    own = tuple((key, node_config.get(name)) for name, key in OWN_PATHS.items())
    cfg, dataset, strategy = _application(header.config_json, own)
    device_of(cfg.engine.device)
    if torch.get_num_threads() != cfg.engine.threads:
        torch.set_num_threads(cfg.engine.threads)
    index, count = shard_of(node_config)
    _check_users(dataset.num_users, count)
    lo, hi = shard_bounds(dataset.num_users, index, count)
    shard_key = f"{index:06d}-of-{count:06d}"
    store = _open_store(store_path(node_config, cfg, shard_key), shard_key)
    state = PrivateState(strategy, store, header.run_id, cfg.seed, unknown_run=unknown_run)
    return Node(shard_key, np.arange(lo, hi, dtype=np.int64), cfg, dataset, strategy, state)


def check_code(header: Header) -> None:
    """Refuse a server that runs other code; a header without a fingerprint is not checked."""
    here = code_fingerprint()
    if header.code and header.code != here:
        folders = ", ".join(sorted({str(package_folder(name).parent) for name in PACKAGES}))
        raise NodeError(
            f"this node runs other code than the server: {here[:16]} here (imported from "
            f"{folders}), {header.code[:16]} at the server. In simulation stop the local "
            "SuperLink (fedrecgel stop) and run again; in deployment install the server's "
            "version on this node"
        )


def shard_of(node_config: Mapping[str, object]) -> tuple[int, int]:
    """The node's partition-id and num-partitions, checked."""
    index, count = node_config.get("partition-id"), node_config.get("num-partitions")
    numbers = type(index) is int and type(count) is int
    if not numbers or not 0 <= index < count:  # type: ignore[operator]
        raise NodeError(
            "a node needs partition-id and num-partitions, whole numbers with 0 <= partition-id "
            f"< num-partitions; got {index!r} and {count!r}. Start it with "
            "--node-config 'partition-id=0 num-partitions=2'"
        )
    return index, count  # type: ignore[return-value]


def _check_users(num_users: int, num_nodes: int) -> None:
    if num_nodes > num_users:
        raise NodeError(
            f"{num_nodes} nodes are too many for the {num_users} users of the prepared data: a "
            f"node hosts one user at least; set federation.num_nodes={num_users} or lower (in "
            "deployment num-partitions of --node-config too)"
        )


def store_path(node_config: Mapping[str, object], cfg: Config, shard_key: str) -> Path:
    """Where the node's private state lies: ``store-path``, else in the run's folder.

    ``store-path`` names the file, or a folder that exists already.
    """
    given = node_config.get("store-path")
    if given is not None:
        path = Path(str(given)).expanduser()
        return path / f"{shard_key}.sqlite" if path.is_dir() else path
    if not cfg.output or not cfg.name:
        raise NodeError(
            "the run has no folder to keep the node's private state in: set output and name, "
            "or start the node with --node-config 'store-path=\"/a/file.sqlite\"'"
        )
    return Path(cfg.output) / cfg.name / "nodes" / f"{shard_key}.sqlite"


def decode_shared(record: ArrayRecord) -> tuple[Tensors, bytes]:
    """Shared tensors and a hash of their content; decoded once a process while they are recent.

    The tensors are shared between messages: do not modify them.
    """
    digest = hashlib.sha256()
    for name, array in record.items():
        digest.update(f"{name}\0{array.dtype}{array.shape}{array.stype}\0".encode())
        digest.update(array.data)
    key = digest.digest()
    with _lock:
        shared = _decoded.fetch(key)
        if shared is None:
            shared = from_arrays(record)
            _decoded.keep(key, shared)
    return shared, key


@lru_cache(maxsize=4)
def _application(
    config_json: str, own_paths: tuple[tuple[str, object], ...]
) -> tuple[Config, Dataset, RecStrategy]:
    """``own_paths``: where this node has its data, in place of the server's paths."""
    cfg = from_json(config_json)
    paths = {key: str(path) for key, path in own_paths if path is not None}
    if "dataset" in paths:
        cfg = replace(cfg, dataset=replace(cfg.dataset, path=paths["dataset"]))
    cfg = replace(cfg, cache=paths.get("cache", cfg.cache))
    strategy: RecStrategy = build_strategy(cfg)
    return cfg, load_dataset(cfg), strategy


def _open_store(path: Path, owner: str) -> UserStore:
    """The open store, opened anew where the file was removed or replaced meanwhile."""
    key = (path, owner)
    with _lock:
        found = _stores.fetch(key)
        if found is not None and path.exists() and path.stat().st_ino == found[0]:
            return found[1]
        if found is not None:
            found[1].close()
        store = UserStore(path, owner)
        for _, old in _stores.keep(key, (path.stat().st_ino, store)):
            old.close()
        return store
