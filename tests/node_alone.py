"""A node's folder after a run in process, for tests of what the node can do by itself."""

from __future__ import annotations

from pathlib import Path

import tiny_run

from client_app.distribute import distribute
from client_app.on_device import Device
from conf.tree import Config
from server_app.grid import LocalGrid
from server_app.run import run_server

ROUNDS = 4
SETTINGS = [
    "strategy=fedmf",
    f"federation.rounds={ROUNDS}",
    "federation.fraction=0.5",
    "federation.grid=deployment",
    "federation.num_nodes=2",
    "evaluation.every=2",
]
NEWCOMER = "newcomer\t7\t2\nnewcomer\t5\t3\nnewcomer\t9\t1\nnewcomer\t11\t1\n"


def configured(folder: Path) -> Config:
    return tiny_run.config(folder, *SETTINGS)


def train(place: Path) -> Path:
    """Two nodes with data of their own after a run; ``place`` again."""
    cfg = configured(place)
    folders = [written.folder for written in distribute(cfg, place / "nodes", [10, 10])]
    with (folders[0] / "interactions.inter").open("a") as file:
        file.write(NEWCOMER)
    grid = LocalGrid(2, node_configs=[{"data-path": str(folder)} for folder in folders])
    run_server(grid, cfg)
    return place


def trained_user(device: Device) -> int:
    """The first user with a private state."""
    return int(device.store.trained_users(device.run_id)[0])


def log_of(folder: Path) -> bytes:
    """What is in the write-ahead log of a folder's store."""
    path = folder / "store.sqlite-wal"
    return path.read_bytes() if path.exists() else b""
