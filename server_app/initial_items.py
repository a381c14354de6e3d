"""Item embeddings of a run: as they are, and as the start of another run.

A start leaks what it was trained on: if the other run held out other rows, its embeddings know
the rows that are held out here. Such a run is refused.
"""

from __future__ import annotations

from logging import INFO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.common.logger import log
from torch import Tensor

from conf.build import ConfigError
from conf.tree import Config, build_strategy, from_mapping
from server_app.checkpoint import load_checkpoint
from server_app.errors import ServerError
from server_app.run_folder import CONFIG, read_config, settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from models.base import DotProduct, ScoringModel
    from models.types import Tensors
    from strategies.base import RecStrategy

    Shards = Mapping[str, Mapping[str, str]]

SPLIT = ("min_interactions", "duplicates", "ties", "validation")
"""Settings of a protocol that say which rows are held out."""
NOT_DATA = ("dataset.path", "dataset.titles", "dataset.bad_rows", "dataset.sha256")
"""Settings of a data set that two runs on the same rows may differ in."""
KNOWING = {"protocol.negatives": "exclude_heldout", "protocol.select": "best_test"}
"""What a run may have been told of rows that it held out, and another run must not be."""
HASHED = ("protocol.num_candidates", "protocol.candidates", "dataset.titles")
"""Settings beside the rows that a shard's hash of its data hangs on."""


def item_tables(folder: Path) -> tuple[Tensors, int, RecStrategy]:
    """Item tables (I, D) of the selected round as scored with, its number, and its strategy.

    They are those of the newest round before one was selected.

    Raises:
        CheckpointError: when no checkpoint is intact.
        ServerError: when they are encrypted and the private key is not here.

    """
    config, checkpoint = from_mapping(read_config(folder)), load_checkpoint(folder)
    selected = checkpoint.selection.round
    held = checkpoint.shared if selected is None else checkpoint.best
    strategy = build_strategy(config)
    try:
        shared = strategy.opened(held)
    except (OSError, ValueError) as error:
        raise ServerError(f"{folder}: the item embeddings cannot be read here: {error}") from error
    server_round = checkpoint.round if selected is None else selected
    return strategy.item_vectors(shared), server_round, strategy


def initial_items(cfg: Config, num_items: int, shards: Shards | None = None) -> Tensors:
    """Tables that the model starts from in place of drawn ones; none where ``init`` names no run.

    ``shards``: hashes of this run's users and data by shard key, as a checkpoint has them.

    Raises:
        ConfigError: when there is no such run or table, or it does not suit this run.
        CheckpointError, ServerError: when the run's tables cannot be read.

    """
    source = source_run(cfg)
    if source is None:
        return {}
    folder = Path(cfg.output) / source
    if not (folder / CONFIG).is_file():
        raise ConfigError(f"init.run={source}: there is no run in {folder}")
    _check_split(cfg, from_mapping(read_config(folder)))
    _check_rows(cfg, folder, shards or {})
    found, server_round, strategy = item_tables(folder)
    named = _named(cfg, found, strategy.model.dot_product)
    tables = {n: _scaled(t, cfg.init.std) for n, t in named.items()}
    for name, table in tables.items():
        _check_shape(cfg, name, table, num_items)
        log(INFO, "%s starts from %s, round %d", name, source, server_round)
    return tables


def check_start(cfg: Config, first: Config) -> None:
    """Raise ConfigError unless the model can start from the items of such a run.

    By names and widths, before it is made.
    """
    theirs = first.model
    drawn = theirs.init_shared(1, np.random.default_rng(0))
    found = {name: drawn[name] for name in theirs.item_tables}
    for name, table in _named(cfg, found, theirs.dot_product).items():
        _check_shape(cfg, name, table, 1)


def source_run(cfg: Config) -> str | None:
    """Name of the run that is started from, or its folder: given, or the one that goes first."""
    if cfg.init.strategy is not None:
        return f"{cfg.name}-init"
    return cfg.init.run


def _named(cfg: Config, found: Tensors, theirs: DotProduct | None) -> Tensors:
    """The run's tables under the names of this model's."""
    init, ours = cfg.init, cfg.model.dot_product
    if init.table is None:
        common = {n: t for n, t in found.items() if n in cfg.model.item_tables}
        if not common and theirs is not None and ours is not None:
            return {ours.items: found[theirs.items]}
        if not common:
            raise ConfigError(
                f"init.run={source_run(cfg)} has {', '.join(sorted(found))} and the model "
                f"{', '.join(sorted(cfg.model.item_tables))}: say init.table=… init.into=…"
            )
        return common
    if init.table not in found:
        raise ConfigError(f"init.table must be one of {', '.join(sorted(found))}, got {init.table}")
    return {init.into or init.table: found[init.table]}


def _scaled(table_ID: Tensor, std: float | None) -> Tensor:
    return table_ID if std is None else table_ID * (std / table_ID.std())


def _check_shape(cfg: Config, name: str, table_ID: Tensor, num_items: int) -> None:
    if len(table_ID) != num_items:
        raise ConfigError(f"init.run={source_run(cfg)} has {len(table_ID)} items, not {num_items}")
    wanted = row_shape(cfg.model, name)
    if list(table_ID.shape[1:]) != wanted:
        raise ConfigError(
            f"init.run={source_run(cfg)}: a row of the table for {name} is "
            f"{list(table_ID.shape[1:])} and the model's {wanted}"
        )


def row_shape(model: ScoringModel, name: str) -> list[int]:
    """Shape of an item's row in a table of the model."""
    return list(model.init_shared(1, np.random.default_rng(0))[name].shape[1:])


def _check_split(cfg: Config, other: Config) -> None:
    """Raise ConfigError unless both runs hold out the same rows of the same data."""
    ours, theirs = settings_of(cfg), settings_of(other)
    keys = [key for key in ours if key.startswith("dataset.") and key not in NOT_DATA]
    keys += [f"protocol.{name}" for name in SPLIT]
    keys += [key for key, value in KNOWING.items() if theirs.get(key) == value]
    for key in keys:
        if ours[key] != theirs.get(key):
            raise ConfigError(
                f"init.run={source_run(cfg)} has {key}={theirs.get(key)} and this run {ours[key]}: "
                "its embeddings may know rows that are held out here"
            )


def _check_rows(cfg: Config, folder: Path, shards: Shards) -> None:
    """Raise ConfigError where a shard of both runs has other users or rows than it had."""
    ours, theirs = settings_of(cfg), settings_of(from_mapping(read_config(folder)))
    if any(ours[key] != theirs.get(key) for key in HASHED):
        return
    for key, known in load_checkpoint(folder).shards.items():
        if key in shards and shards[key] != known:
            raise ConfigError(
                f"init.run={source_run(cfg)} had other users or rows in shard {key}: "
                "its embeddings may know rows that are held out here"
            )
