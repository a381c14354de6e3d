"""What ``--node-config`` says: which users a node hosts, and where its files are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from client_app.data import Dataset, shard_bounds
from client_app.distribute import shard_key
from client_app.node_folder import is_node_folder, read_shard
from conf.tree import Config
from models.types import IntArray

DATA_PATH, CACHE_PATH, STORE_PATH = "data-path", "cache-path", "store-path"
"""Keys of ``--node-config`` for a node whose data lies elsewhere than the server's."""
REQUIRE_SECAGG = "require-secagg"
"""Key of a node that takes part in runs with secure aggregation alone: it is the server that
sends the configuration, so the node's owner says so on the node."""
STORE = "store.sqlite"
"""Name of the store beside a node's own data."""


class NodeError(RuntimeError):
    """A request that the node cannot serve; the text says what to change."""


def own_folder(node_config: Mapping[str, object]) -> Path | None:
    """The node's own data folder; None where ``data-path`` names a file or nothing.

    Raises:
        NodeError: for a folder that ``fedrecgel prepare`` did not write, or a relative path.

    """
    given = node_config.get(DATA_PATH)
    path = None if given is None else Path(str(given)).expanduser()
    if path is None or not path.is_dir():
        return None
    if not is_node_folder(path):
        raise NodeError(
            f"data-path={path} is neither a data file nor a node's folder as `fedrecgel prepare` "
            "writes it (it has no shard.json)"
        )
    if not path.is_absolute():
        raise NodeError(f"data-path must be an absolute path, got {path}")
    return path


def own_paths(node_config: Mapping[str, object]) -> tuple[str | None, str | None]:
    """Data file and cache of this machine where they are not the server's."""
    data, cache = (node_config.get(key) for key in (DATA_PATH, CACHE_PATH))
    return None if data is None else str(data), None if cache is None else str(cache)


def refuse_personal(node_config: Mapping[str, object], cfg: Config) -> None:
    """A node set up with paths of its own gives no single user's figures, whatever is asked.

    The configuration itself refuses this for a deployment; but it is the server that says so.

    Raises:
        NodeError: when the run asks for each user's ranks, or number of interactions.

    """
    own = sorted({DATA_PATH, CACHE_PATH, STORE_PATH} & node_config.keys())
    if cfg.evaluation.user_ranks and own:
        raise NodeError(
            f"this node has a {own[0]} of its own and does not give its users' ranks, which are "
            "personal figures: evaluation.user_ranks=false"
        )
    if cfg.devices.simulated and own:
        raise NodeError(
            f"this node has a {own[0]} of its own and does not say how many interactions its users "
            "have, by which devices are simulated: devices=none"
        )


def refuse_open_sums(node_config: Mapping[str, object], cfg: Config) -> None:
    """Raise NodeError for a run without secure aggregation where the node asks for it."""
    if node_config.get(REQUIRE_SECAGG) is True and cfg.privacy.secagg is None:
        raise NodeError(
            f"this node has {REQUIRE_SECAGG}=true and sends no sums of its own in clear: "
            "privacy=secagg"
        )


def share_of(
    node_config: Mapping[str, object], folder: Path | None, dataset: Dataset
) -> tuple[str, IntArray]:
    """The node's shard key and the global indices of its users."""
    if folder is not None:
        assert dataset.hosted is not None
        return read_shard(folder).shard_key, dataset.hosted
    index, count = shard_of(node_config)
    _check_users(dataset.num_users, count)
    lo, hi = shard_bounds(dataset.num_users, index, count)
    return shard_key(index, count), np.arange(lo, hi, dtype=np.int64)


def shard_of(node_config: Mapping[str, object]) -> tuple[int, int]:
    """The node's partition-id and num-partitions, checked."""
    index, count = node_config.get("partition-id"), node_config.get("num-partitions")
    numbers = type(index) is int and type(count) is int
    if not numbers or not 0 <= index < count:  # type: ignore[operator]
        raise NodeError(
            "a node needs partition-id and num-partitions, whole numbers with 0 <= partition-id "
            f"< num-partitions; got {index!r} and {count!r}. Start it with "
            "--node-config 'partition-id=0 num-partitions=2', or with the data-path of a folder "
            "that `fedrecgel prepare` wrote"
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
    """Where the node's private state lies: beside its own data, else in the run's folder.

    ``store-path`` in place of either names the file, or a folder that exists already.
    """
    given, folder = node_config.get(STORE_PATH), own_folder(node_config)
    if given is not None:
        path = Path(str(given)).expanduser()
        return path / f"{shard_key}.sqlite" if path.is_dir() else path
    if folder is not None:
        return folder / STORE
    if not cfg.output or not cfg.name:
        raise NodeError(
            "the run has no folder to keep the node's private state in: set output and name, "
            "or start the node with --node-config 'store-path=\"/a/file.sqlite\"'"
        )
    return Path(cfg.output) / cfg.name / "nodes" / f"{shard_key}.sqlite"
