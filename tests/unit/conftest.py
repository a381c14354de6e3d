"""A node's folder after a run in process, for tests of what the node can do by itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from node_alone import train
from secagg_nodes import NODES, Nodes, config

from client_app.on_device import Device
from server_app.run import run_server
from server_app.secagg import SecureSums, Summed


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of the first node's folder, to be changed at will."""
    return shutil.copytree(trained / "nodes" / "node-000", tmp_path / "node-000")


@pytest.fixture
def device(folder: Path) -> Device:
    return Device.opened(folder / "store.sqlite", folder)


@pytest.fixture
def secure_sums(monkeypatch: pytest.MonkeyPatch) -> dict[str, Summed]:
    """Every sum that a server made, by its name."""
    found: dict[str, Summed] = {}
    collect = SecureSums.collect

    def kept(self: SecureSums, what: str, *rest: object) -> Summed:
        found[what] = collect(self, what, *rest)  # type: ignore[arg-type]
        return found[what]

    monkeypatch.setattr(SecureSums, "collect", kept)
    return found


@pytest.fixture(scope="session")
def plain_nodes(tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    """Nodes of a run without protection, with their replies."""
    nodes = Nodes()
    cfg = config(tmp_path_factory.mktemp("plain"), "name=plain")
    run_server(nodes.grid(NODES), cfg)
    return nodes
