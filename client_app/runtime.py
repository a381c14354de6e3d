"""What a process keeps between messages: configuration, data, strategy, stores, decoded arrays.

A simulation worker answers for many nodes and rounds, so everything that messages have in
common is made once a process and kept in small caches.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TypeVar

import numpy as np
import torch
from flwr.app import ArrayRecord

from client_app.cache import Cache
from client_app.data import Dataset, load_dataset
from client_app.device import device_of
from client_app.node_config import (
    NodeError,
    own_folder,
    own_paths,
    refuse_open_sums,
    refuse_personal,
    share_of,
    store_path,
)
from client_app.private_state import PrivateState, UnknownRun
from client_app.shard import load_shard
from client_app.user_store import UserStore
from conf.fingerprint import PACKAGES, code_fingerprint, package_folder
from conf.tree import Config, build_strategy, from_json
from models.types import IntArray, Tensors
from strategies.base import RecStrategy
from strategies.codec import from_arrays
from strategies.messages import Header

OPEN_STORES, DECODED = 64, 4
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Node:
    """One node in one run: its shard of users and everything to train and rank them."""

    shard_key: str
    users: IntArray
    """Global indices, ascending, without forgotten users."""
    cfg: Config
    dataset: Dataset
    strategy: RecStrategy
    state: PrivateState
    folder: Path | None = None
    """The node's own data folder; None where it takes its part of a whole data set."""
    forgotten: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    """Users that were to be forgotten; where a request names them they are left out."""

    def part(self, users: IntArray | None) -> IntArray:
        """The users of a request in ascending order; all of the node where none are named.

        Raises:
            NodeError: for no users, a repeated one, users of other nodes, or only forgotten ones.

        """
        if users is None:
            return self.users
        ordered = np.unique(users)
        if len(ordered) != len(users) or not len(users):
            raise NodeError(f"shard {self.shard_key}: users must be distinct and at least one")
        here = np.intersect1d(ordered, self.users, assume_unique=True)
        foreign = np.setdiff1d(ordered, np.concatenate((here, self.forgotten)))
        if len(foreign):
            raise NodeError(
                f"shard {self.shard_key} hosts {len(self.users)} users{self._span()}, not user "
                f"{foreign[0]}"
            )
        if not len(here):
            raise NodeError(f"shard {self.shard_key}: the users asked for were forgotten")
        return here

    def _span(self) -> str:
        return f" from {self.users[0]} to {self.users[-1]}" if len(self.users) else ""


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
    folder = own_folder(node_config)
    cfg, dataset, strategy = _application(header.config_json, folder, own_paths(node_config))
    refuse_personal(node_config, cfg)
    refuse_open_sums(node_config, cfg)
    device_of(cfg.engine.device)
    if torch.get_num_threads() != cfg.engine.threads:
        torch.set_num_threads(cfg.engine.threads)
    key, users = share_of(node_config, folder, dataset)
    store = _open_store(store_path(node_config, cfg, key), key)
    state = PrivateState(
        strategy, store, header.run_id, cfg.seed, dataset.num_items, unknown_run=unknown_run
    )
    forgotten = store.forgotten()
    users = np.setdiff1d(users, forgotten, assume_unique=True)
    return Node(key, users, cfg, dataset, strategy, state, folder, forgotten)


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
    config_json: str, folder: Path | None, own_paths: tuple[str | None, str | None]
) -> tuple[Config, Dataset, RecStrategy]:
    """``own_paths``: where this node has its data, in place of the server's paths."""
    cfg, (data, cache) = from_json(config_json), own_paths
    strategy: RecStrategy = build_strategy(cfg)
    if folder is not None:
        return cfg, load_shard(folder, cfg, None if cache is None else Cache.at(cache)), strategy
    if data is not None:
        cfg = replace(cfg, dataset=replace(cfg.dataset, path=data))
    cfg = replace(cfg, cache=cfg.cache if cache is None else cache)
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
