"""A node's folder after a run in process, for tests of what the node can do by itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from node_alone import train

from client_app.on_device import Device


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
