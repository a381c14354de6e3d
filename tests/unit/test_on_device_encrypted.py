"""Recommending on a node whose server holds and sends ciphertexts."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_run

pytest.importorskip("phe")

from client_app.distribute import distribute
from client_app.on_device import Device
from server_app.grid import LocalGrid
from server_app.run import run_server
from strategies.paillier_keys import PRIVATE_FILE, PUBLIC_FILE, new_key_pair

PLAIN = (
    "strategy=fedmf",
    "strategy.server_optimiser=sgd",
    "strategy.server_lr=1",
    "federation.rounds=2",
    "federation.fraction=0.5",
    "federation.grid=deployment",
    "federation.num_nodes=1",
)


def suggested(folder: Path, *overrides: str) -> list[tuple[str, float]]:
    """What a node lists for each of its users after a run, and with which scores."""
    cfg = tiny_run.config(folder, *PLAIN, *overrides)
    (written,) = distribute(cfg, folder / "nodes", [tiny_run.NUM_USERS])
    grid = LocalGrid(1, node_configs=[{"data-path": str(written.folder)}])
    run_server(grid, cfg)
    listed = list[tuple[str, float]]()
    with Device.opened(written.folder / "store.sqlite", written.folder) as device:
        assert len(device.store.trained_users(device.run_id))
        for user in range(tiny_run.NUM_USERS):
            found = device.suggest(str(user), 5)
            listed += [(item, score) for item, _, score in found.items]
    return listed


def test_scores_are_those_of_the_plain_run(tmp_path: Path) -> None:
    """θ is rounded to 2^-25 once and by less in each of two rounds, and vectors follow it.

    Twice that for each, float32 included, over 32 products of numbers below 1.
    """
    plain, secret, keys = tmp_path / "plain", tmp_path / "secret", tmp_path / "keys"
    for folder in (plain, secret, keys):
        folder.mkdir()
    public, private = new_key_pair(512)
    (keys / PUBLIC_FILE).write_text(public)
    (keys / PRIVATE_FILE).write_text(private)
    changes = ("strategy.encryption=paillier", f"strategy.key_folder={keys}")
    expected = suggested(plain)
    found = suggested(secret, *changes, "strategy.allow_weak_key=true")
    assert len(found) == 5 * tiny_run.NUM_USERS
    assert [score for _, score in found] == pytest.approx(
        [score for _, score in expected], abs=32 * 2.0**-22
    )
