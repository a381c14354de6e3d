"""Checkpoints: what is kept, what survives damage, equal bytes for equal state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from server_app.checkpoint import Checkpoint, CheckpointStore, load_checkpoint
from server_app.errors import CheckpointError
from server_app.selection import Selection

FILES = ("tensors.safetensors", "best.safetensors", "state.json")


def checkpoint(server_round: int) -> Checkpoint:
    generator = torch.Generator().manual_seed(server_round)
    shared = {n: torch.randn(4, 2, generator=generator) for n in ("items", "a_layer")}
    return Checkpoint(
        round=server_round,
        run_id="run",
        incarnation=0,
        config_hash="hash",
        shards={"shard": {"users": "u", "data": "d"}},
        selection=Selection(max(server_round - 1, 0), 0.5, 1, {"m": 0.25}, {"m": 10.0}),
        shared=shared,
        server_state={"adam_step": torch.tensor(float(server_round))},
        best={"items": shared["items"]},
    )


def same(a: Checkpoint, b: Checkpoint) -> bool:
    plain = all(
        getattr(a, n) == getattr(b, n)
        for n in ("round", "run_id", "incarnation", "config_hash", "shards", "selection")
    )
    parts = ((a.shared, b.shared), (a.server_state, b.server_state), (a.best, b.best))
    return plain and all(
        x.keys() == y.keys() and all(torch.equal(x[n], y[n]) for n in x) for x, y in parts
    )


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path)
    for server_round in (0, 5, 10):
        store.save(checkpoint(server_round))
    return store


def test_round_trip(store: CheckpointStore, tmp_path: Path) -> None:
    loaded = CheckpointStore(tmp_path).load()
    assert loaded is not None
    assert same(loaded, checkpoint(10))
    assert same(load_checkpoint(tmp_path), checkpoint(10))


def test_the_newest_two_are_kept(store: CheckpointStore) -> None:
    assert [f.name for f in sorted(store.folder.iterdir())] == [
        "round-000000005",
        "round-000000010",
    ]
    assert store.newest == 10
    assert store.state_rounds == {4, 5, 9, 10}


def test_no_checkpoint_is_not_an_error(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path).load() is None
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        load_checkpoint(tmp_path)


def test_equal_state_gives_equal_bytes(tmp_path: Path) -> None:
    folders = []
    for name, tensors in (("a", False), ("b", True)):
        state = checkpoint(3)
        if tensors:  # another insertion order and another memory layout, the same values
            shared = dict(reversed(state.shared.items()))
            shared["items"] = shared["items"].t().contiguous().t()
            state = replace(state, shared=shared)
        folders.append(CheckpointStore(tmp_path / name).save(state))
    for file in FILES:
        assert (folders[0] / file).read_bytes() == (folders[1] / file).read_bytes()


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_newest_falls_back(
    store: CheckpointStore, tmp_path: Path, file: str, damage: str
) -> None:
    path = store.folder / "round-000000010" / file
    data = bytearray(path.read_bytes())
    if damage == "flip":
        # A digit of the JSON's round becomes another, or a byte of a tensor changes.
        position = data.index(b"10") if file == "state.json" else len(data) - 3
        data[position] ^= 1
    path.unlink()
    if damage != "remove":
        path.write_bytes(data if damage == "flip" else data[:-5])
    fresh = CheckpointStore(tmp_path)
    loaded = fresh.load()
    assert loaded is not None
    assert same(loaded, checkpoint(5))
    assert (fresh.newest, fresh.state_rounds) == (5, {4, 5})
    assert not (store.folder / "round-000000010").exists()


def test_all_damaged_is_an_error_and_nothing_is_removed(
    store: CheckpointStore, tmp_path: Path
) -> None:
    for folder in store.folder.iterdir():
        (folder / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no checkpoint is intact"):
        CheckpointStore(tmp_path).load()
    assert len(list(store.folder.iterdir())) == 2


def test_a_crash_while_writing_leaves_the_old_one(store: CheckpointStore, tmp_path: Path) -> None:
    """What a killed process leaves behind is a hidden folder that the next save replaces."""
    partial = store.folder / ".round-000000015.tmp"
    partial.mkdir()
    (partial / "tensors.safetensors").write_bytes(b"half")
    fresh = CheckpointStore(tmp_path)
    loaded = fresh.load()
    assert loaded is not None
    assert loaded.round == 10
    fresh.save(checkpoint(15))
    reloaded = CheckpointStore(tmp_path).load()
    assert reloaded is not None
    assert same(reloaded, checkpoint(15))
