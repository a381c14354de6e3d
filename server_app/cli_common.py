"""What the commands share: console, run folders, seeds."""

from __future__ import annotations

import logging
from pathlib import Path

from rich.console import Console

from conf.build import ConfigError
from conf.overrides import default_runs

CONSOLE = Console()
ERRORS = Console(stderr=True)
if not CONSOLE.is_terminal:
    # A pipe or file has no width: rich would fold tables at 80 columns.
    CONSOLE.width = 140


def quiet_flower() -> None:
    """Keep Flower's informative log lines of this process off the terminal."""
    # Importing Flower's logger sets its level, so it has to come first.
    from flwr.common.logger import FLOWER_LOGGER

    FLOWER_LOGGER.setLevel(logging.WARNING)


def runs_root(output: str | None) -> Path:
    """Folder that holds the runs: the option, ``FEDRECGEL_RUNS``, or ``runs`` here."""
    here = Path.cwd()
    return (here / Path(output).expanduser()) if output else Path(default_runs(here / "runs"))


def run_folder(run: str, output: str | None) -> Path:
    """Folder of a run given by name or by path.

    Raises:
        ConfigError: when there is none.

    """
    for folder in (runs_root(output) / run, Path.cwd() / run):
        if (folder / "config.yaml").is_file():
            return folder
    raise ConfigError(f"there is no run {run!r} in {runs_root(output)}; see `fedrecgel runs`")


def parse_seeds(text: str) -> list[int]:
    """Distinct seeds from ``0,1,2`` (brackets allowed).

    Raises:
        ConfigError: for anything else.

    """
    parts = [part.strip() for part in text.strip("[]()").split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise ConfigError(f"seeds must be distinct whole numbers such as 0,1,2, got {text!r}")
    return [int(part) for part in parts]
