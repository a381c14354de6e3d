"""How many nodes work at the same time."""

from __future__ import annotations

import os
from collections.abc import Sequence

from flwr.serverapp import Grid
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from conf.tree import Config


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fitting_workers(cfg: Config) -> int:
    """Nodes of this machine that can work at once with cores of their own; at least one."""
    fitting = max(1, cores() // (cfg.engine.workers * cfg.engine.threads))
    return min(cfg.federation.num_nodes, fitting)


def local_workers(cfg: Config) -> int:
    """Workers of the in-process grid: as configured, else as many as have cores of their own."""
    return cfg.federation.workers or fitting_workers(cfg)


def working_at_once(grid: Grid, num_nodes: int, fitting: int) -> int:
    """Nodes that can work at once: all where each has a machine, else as many as workers.

    ``fitting``: workers of a simulation, which its grid does not know (server_app.flower_run).
    """
    workers = getattr(grid, "workers", None)
    if workers is None and isinstance(grid, InMemoryGrid):
        workers = fitting
    return num_nodes if workers is None else min(workers, num_nodes)


def least_seconds(seconds: Sequence[float], at_once: int) -> float:
    """The shortest time in which work of these lengths can be done, so many at once."""
    return max([*seconds, sum(seconds) / max(1, at_once)], default=0.0)
