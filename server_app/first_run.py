"""The run of another strategy that goes first, for one that starts from its item embeddings."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from logging import INFO
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.common.logger import log
from flwr.serverapp import Grid

from conf import secagg_checks
from conf.compose import compose, options
from conf.tree import Config, ConfigError, to_json
from server_app.initial_items import check_start, row_shape, source_run
from server_app.run_folder import CONFIG, check_resumable, read_config, read_state

if TYPE_CHECKING:
    from collections.abc import Callable

SAME = ("dataset", "protocol", "engine", "evaluation", "privacy", "seed", "output", "cache")


def make_first(grid: Grid, cfg: Config, run: Callable[[Grid, Config], object]) -> None:
    """Make the run that ``init.strategy`` asks for, unless it is there; go on with a part of one.

    Raises:
        ConfigError: for an unknown strategy, or one that the model cannot start from, or that
            cannot be protected as this run is.
        ServerError: when the run fails, or the folder holds another one.

    """
    first = first_config(cfg)
    check_start(cfg, first)
    folder = Path(first.output) / str(first.name)
    if (folder / CONFIG).exists():
        first = replace(first, resume=True)
        if read_state(folder).status == "completed":
            check_resumable(read_config(folder), json.loads(to_json(first)))
            return
    log(INFO, "%s goes first: %d rounds of %s", first.name, cfg.init.rounds, cfg.init.strategy)
    run(grid, first)


def first_config(cfg: Config) -> Config:
    """The first run: the strategy's own settings, and the width that the model starts from.

    Raises:
        ConfigError: as in :func:`make_first`.

    """
    name = cfg.init.strategy
    if name not in options("strategy"):
        raise ConfigError(
            f"init.strategy must be one of {', '.join(options('strategy'))}, got {name}"
        )
    composed = compose([f"strategy={name}"])
    same = {key: getattr(cfg, key) for key in SAME}
    federation = replace(cfg.federation, rounds=cfg.init.rounds, fraction=cfg.init.fraction)
    model = _as_wide(composed.model, cfg)
    first = replace(
        composed, **same, model=model, federation=federation, name=source_run(cfg), resume=False
    )
    for problem in secagg_checks.problems(first):
        raise ConfigError(f"init.strategy={name}: {problem}")
    return first


def _as_wide(model: object, cfg: Config) -> object:
    """The first run's model with vectors as wide as those of the model that starts from them."""
    ours = cfg.model.dot_product
    if ours is None or "factors" not in {f.name for f in fields(model)}:  # type: ignore[arg-type]
        return model
    (width,) = row_shape(cfg.model, ours.items)
    return replace(model, factors=width)  # type: ignore[type-var]
