"""A run of which the result alone is kept."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from server_app.results import RunResult


def scratch_run(root: Path, name: str, words: Sequence[str]) -> RunResult:
    """The result of a run of ``words`` in this process, in ``root``, of which nothing is left.

    Raises:
        ConfigError, ServerError: as from the run.

    """
    from conf.compose import compose
    from server_app.grid import LocalGrid
    from server_app.run import run_server

    place = ["federation.grid=local", f"output={root.resolve()}", f"name={name}"]
    try:
        _remove(root, name)
        cfg = compose([*words, *place])
        return run_server(LocalGrid(cfg.federation.num_nodes), cfg)
    finally:
        _remove(root, name)


def _remove(root: Path, name: str) -> None:
    """The run's folder, and that of a run that went first."""
    for folder in (name, f"{name}-init"):
        shutil.rmtree(root / folder, ignore_errors=True)
