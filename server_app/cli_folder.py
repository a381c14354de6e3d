"""The folder of a run before it starts and after it stopped, for the command line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from conf.compose import GROUPS
from conf.overrides import as_overrides, assignment, default_runs
from conf.tree import Config, ConfigError, from_mapping, to_json, to_mapping
from server_app.cli_common import run_folder
from server_app.errors import RunFolderError


def placed(config: Config) -> Config:
    """The configuration with output folder and name; the name's folder is reserved."""
    from server_app.run_folder import with_defaults

    root = config.output or default_runs(Path.cwd() / "runs")
    config = from_mapping({**to_mapping(config), "output": root})
    try:
        config = with_defaults(config)
        check_folder(config)
    except OSError as error:
        raise ConfigError(told(error, config)) from error
    return config


def check_folder(config: Config) -> None:
    """Refuse a name that is taken, or a resume that cannot continue, before anything starts."""
    from server_app.lock import is_locked, lock_holder
    from server_app.run_folder import check_resumable, read_config

    folder = Path(config.output) / str(config.name)
    if folder.is_dir() and is_locked(folder):
        raise ConfigError(f"{folder} is in use by another process (pid {lock_holder(folder)})")
    if not config.resume:
        return _check_free(folder)
    try:
        check_resumable(read_config(folder), json.loads(to_json(config)))
    except RunFolderError as error:
        raise ConfigError(str(error)) from None


def _check_free(folder: Path) -> None:
    """Refuse the name of a folder that holds anything."""
    from server_app.lock import LOCK
    from server_app.run_folder import CONFIG

    if folder.is_dir() and any(entry.name != LOCK for entry in folder.iterdir()):
        kind = "a run already" if (folder / CONFIG).exists() else "other files"
        raise ConfigError(
            f"name={folder.name}: {folder} holds {kind}; choose another name"
            + (f", or continue it with --resume {folder.name}" if kind == "a run already" else "")
        )


def resumed(run: str, given: Sequence[str]) -> list[str]:
    """Overrides of an earlier run, so that a resume need not repeat them, and ``given`` ones.

    Raises:
        ConfigError: when there is no such run, or a group is given that it did not choose.

    """
    from server_app.run_folder import read_config

    folder = run_folder(run, None)
    config = from_mapping(read_config(folder))
    where = [assignment("name", folder.name), assignment("output", str(folder.parent))]
    kept = as_overrides(to_mapping(config))
    return [*kept, *where, "resume=true", *_single_settings(given, config)]


def _single_settings(given: Sequence[str], config: Config) -> list[str]:
    """``given`` without the groups that the run has anyway; it cannot change to others.

    The run's settings stand above any group, so another one would have no effect, or, of
    the strategy, leave settings behind that it does not know.
    """
    chosen = {
        "strategy": config.strategy_name,
        "model": config.model_name,
        "dataset": config.dataset.name,
        "protocol": config.protocol.name,
        "engine": config.engine.name,
    }
    kept = []
    for text in given:
        key, _, value = text.lstrip("+").partition("=")
        if key not in (*GROUPS, "experiment"):
            kept.append(text)
        elif value.strip("'\"") != chosen.get(key):
            its = f" ({chosen[key]})" if key in chosen else ""
            raise ConfigError(
                f"{text}: a resumed run keeps its {key}{its}; with --resume only single "
                "settings can be given, such as federation.rounds=200"
            )
    return kept


def how_to_go_on(config: Config, options: Sequence[str] = ()) -> str:
    """What to do about a stopped run: only one with a checkpoint can continue.

    ``options``: what the command needs beside the run's name.
    """
    folder = Path(config.output) / str(config.name)
    if any((folder / "checkpoint").glob("round-*")):
        return "continue with: " + shlex.join(
            ["fedrecgel", "run", "--resume", str(folder), *options]
        )
    return "it has no checkpoint yet to continue from"


def told(error: OSError, config: Config | None = None) -> str:
    """An error of the system as one line: which path, what, and which setting leads there."""
    reason = error.strerror or str(error)
    if error.filename is None:
        return reason
    path = Path(str(error.filename))
    line = f"{path}: {reason}"
    for key in ("output", "cache") if config is not None else ():
        root = getattr(config, key)
        # Of a folder that cannot be made, it may be a parent that is named.
        if root and (path.is_relative_to(root) or Path(root).is_relative_to(path)):
            return f"{line} (set by {key}={root})"
    return line
