"""Simulated devices need how many interactions each user has: nobody's but a simulation's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tiny_run

from client_app.node_config import NodeError
from client_app.runtime import open_node
from conf.build import ConfigError
from conf.fingerprint import code_fingerprint
from conf.tree import to_json
from strategies.messages import Header

SIMULATED = {"partition-id": 0, "num-partitions": 1}
PHONES = "devices=phones"
TOLD = r"devices are simulated: federation\.grid=deployment has real ones"


def test_a_deployment_refuses_at_the_server(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=TOLD):
        tiny_run.config(tmp_path, PHONES, "federation.grid=deployment")


def test_a_node_refuses_the_configuration_of_a_deployment(tmp_path: Path) -> None:
    """As a server would send it that left the check out."""
    cfg = tiny_run.config(tmp_path, PHONES)
    assert open_node(SIMULATED, tiny_run.header(cfg)).cfg.devices.simulated
    text = to_json(replace(cfg, federation=replace(cfg.federation, grid="deployment")))
    with pytest.raises(ConfigError, match=TOLD):
        open_node(SIMULATED, Header("run", 0, text, code_fingerprint()))


@pytest.mark.parametrize("key", ["store-path", "cache-path", "data-path"])
def test_a_node_set_up_with_its_own_paths_refuses(tmp_path: Path, key: str) -> None:
    """As a server would send it that calls its deployment a simulation."""
    cfg = tiny_run.config(tmp_path, PHONES)
    value = str(cfg.dataset.path if key == "data-path" else tmp_path / "own")
    told = f"has a {key} of its own and does not say how many interactions its users have"
    with pytest.raises(NodeError, match=told):
        open_node({**SIMULATED, key: value}, tiny_run.header(cfg))
    plain = tiny_run.header(tiny_run.config(tmp_path))
    assert not open_node({**SIMULATED, key: value}, plain).cfg.devices.simulated
