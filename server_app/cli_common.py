"""What the commands share: console, run folders, seeds."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from conf.build import ConfigError
from conf.overrides import default_runs

CONSOLE = Console()
ERRORS = Console(stderr=True)
if not CONSOLE.is_terminal:
    # A pipe or file has no width: rich would fold at 80 columns or at COLUMNS.
    CONSOLE.width = 1000


def quiet_flower() -> None:
    """Keep Flower's informative log lines of this process off the terminal."""
    # Importing Flower's logger sets its level, so it has to come first.
    from flwr.common.logger import FLOWER_LOGGER

    FLOWER_LOGGER.setLevel(logging.WARNING)


class _Warnings(logging.Handler):
    """Shows warnings in a line each; errors end the run with their own line, or are in its log."""

    def __init__(self, told: Iterable[str]) -> None:
        super().__init__(logging.WARNING)
        self._told = set(told)

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.levelno == logging.WARNING and message not in self._told:
            ERRORS.print(f"Warning: {message}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def flower_log(path: Path, told: Iterable[str]) -> Iterator[None]:
    """Have Flower's log of this process in ``path``, and its warnings but ``told`` shown here."""
    from flwr.common.logger import FLOWER_LOGGER, console_handler

    # Delayed: the run's folder must be empty until the run has taken it.
    file = logging.FileHandler(path, encoding="utf-8", delay=True)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s: %(message)s"))
    shown = console_handler in FLOWER_LOGGER.handlers
    FLOWER_LOGGER.removeHandler(console_handler)
    handlers = (file, _Warnings(told))
    for handler in handlers:
        FLOWER_LOGGER.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            FLOWER_LOGGER.removeHandler(handler)
            handler.close()
        if shown:
            FLOWER_LOGGER.addHandler(console_handler)


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
