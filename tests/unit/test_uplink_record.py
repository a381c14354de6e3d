"""Recorded uploads: what is kept, read back, bounded and refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import NUM_USERS, small_config

from conf.checks import remarks
from conf.tree import ConfigError
from models.types import IndividualUpdates, Update
from server_app import uplink_record
from server_app.errors import ServerError
from server_app.grid import LocalGrid
from server_app.run import run_server
from server_app.uplink_record import UplinkRecord, load_round, recorded_rounds
from strategies.messages import Uplink


def uplink(key: str, value: float, individual: IndividualUpdates | None = None) -> Uplink:
    update = Update({"t": torch.full((3, 2), value)}, 2.5, {"t": torch.tensor([1.0, 0.0, 2.0])})
    return Uplink(key, 4, 2, update, {}, 0.0, individual)


def test_what_was_seen_is_read_back(tmp_path: Path) -> None:
    record, shared = UplinkRecord(tmp_path, [4]), {"t": torch.arange(6.0).view(3, 2)}
    own = IndividualUpdates(np.array([7, 9]), {"q": torch.arange(4.0).view(2, 2)})
    asked = {"a": np.array([1, 3]), "b": np.array([7, 9])}
    record.keep(3, shared, [uplink("a", 1.0)], asked)
    record.keep(4, shared, [uplink("a", 1.0), uplink("b", 2.0, own)], asked)
    assert recorded_rounds(tmp_path) == [4]
    seen = load_round(tmp_path, 4)
    assert torch.equal(seen.shared["t"], shared["t"])
    one, two = seen.uploads
    assert (one.shard_key, one.num_users, one.weight, one.users_U.tolist()) == ("a", 2, 2.5, [1, 3])
    assert torch.equal(one.tensors["t"], torch.ones(3, 2))
    assert one.row_weights["t"].tolist() == [1.0, 0.0, 2.0]
    assert (one.individual, len(one.individual_U)) == ({}, 0)
    assert two.individual_U.tolist() == [7, 9]
    assert torch.equal(two.individual["q"], own.tensors["q"])


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "uplinks").mkdir()
    (tmp_path / "uplinks" / "round-000000002.safetensors").write_bytes(b"no")
    with pytest.raises(ServerError, match="round-000000002"):
        load_round(tmp_path, 2)


def test_nothing_is_recorded_by_default(tmp_path: Path) -> None:
    cfg = small_config(tmp_path, "federation.rounds=1")
    folder = run_server(LocalGrid(2), cfg).folder
    assert not (folder / "uplinks").exists()
    assert not any("record_uplinks" in line for line in remarks(cfg))


def test_a_recording_is_bounded_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplink_record, "MAX_BYTES", 1000)
    cfg = small_config(tmp_path, "evaluation.record_uplinks=[1]")
    assert any("record_uplinks keeps nodes' uploads" in line for line in remarks(cfg))
    with pytest.raises(ServerError, match="record fewer rounds"):
        run_server(LocalGrid(2), cfg)


@pytest.mark.parametrize("rounds", ["[0]", "[2,1]", "[1,1]"])
def test_rounds_have_to_ascend_from_one(tmp_path: Path, rounds: str) -> None:
    with pytest.raises(ConfigError, match="ascending rounds"):
        small_config(tmp_path, f"evaluation.record_uplinks={rounds}")


def test_deployments_do_not_record(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only in a simulation"):
        small_config(tmp_path, "evaluation.record_uplinks=[1]", "federation=deployment")


def test_recording_changes_no_result(tmp_path: Path) -> None:
    """The same metrics with and without; every user of the cohort is in the record once."""
    plain = run_server(LocalGrid(2), small_config(tmp_path, "name=plain"))
    kept = run_server(
        LocalGrid(2), small_config(tmp_path, "name=kept", "evaluation.record_uplinks=[1,6]")
    )
    assert plain.metrics == kept.metrics
    assert recorded_rounds(kept.folder) == [1, 6]
    users = np.concatenate([one.users_U for one in load_round(kept.folder, 6).uploads])
    assert len(set(users.tolist())) == len(users) == NUM_USERS // 2
