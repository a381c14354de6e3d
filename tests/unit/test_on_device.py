"""Recommendations on a node after training, and what it keeps for them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_run
import torch
from node_alone import ROUNDS, SETTINGS, configured, log_of, trained_user

from client_app.cold_start import cold_start, identity_of
from client_app.distribute import distribute
from client_app.node_folder import read_shard
from client_app.on_device import Device
from client_app.received import Received
from client_app.retention import TrainKey
from client_app.store_file import StoreError
from client_app.user_store import UserStore
from models.types import History
from server_app.grid import LocalGrid
from server_app.run import run_server


def test_a_run_over_folders_equals_the_simulation(trained: Path, tmp_path: Path) -> None:
    """Deployed nodes in process: same parameters and figures, to the bit."""
    cfg = tiny_run.config(tmp_path, *SETTINGS, "federation.grid=local")
    result = run_server(LocalGrid(2), cfg)
    tensors = f"tiny/checkpoint/round-{ROUNDS:09d}/tensors.safetensors"
    expected = (trained / "runs" / tensors).read_bytes()
    assert (tmp_path / "runs" / tensors).read_bytes() == expected
    stored = json.loads((trained / "runs" / "tiny" / "result.json").read_text())
    assert stored["metrics"] == result.metrics


def test_a_trained_user_is_scored_by_the_private_state(device: Device) -> None:
    user = trained_user(device)
    found = device.suggest(str(user), 40)
    history = np.union1d(device.dataset.train_of(user), device.dataset.heldout_of(user))
    assert (found.source, found.round, found.seen) == ("private embedding", ROUNDS, len(history))
    shown = {item for item, _, _ in found.items}
    assert shown == set(device.dataset.item_ids.tolist()) - set(
        device.dataset.item_ids[history].tolist()
    )
    # By hand: fedmf scores by the product of the user's and the item's embedding.
    private = device._private(user)
    assert private is not None
    table = device.received.tensors["item_emb"]
    (embedding,) = device.strategy.private_parameters(
        {n: t[None] for n, t in private.items()}
    ).values()
    scores = (table @ embedding[0]).numpy()
    places = {item: place for place, item in enumerate(device.dataset.item_ids.tolist())}
    for item, _, score in found.items:
        assert score == pytest.approx(float(scores[places[item]]), rel=1e-5)


def test_a_user_of_the_file_who_is_not_listed_gets_a_cold_start(device: Device) -> None:
    found = device.suggest("newcomer", 5)
    assert (found.source, found.seen) == ("cold start", 4)
    assert not {item for item, _, _ in found.items} & {"7", "5", "9", "11"}
    assert device.suggest("newcomer", 5) == found  # derived streams: the same again
    assert device.suggest("newcomer", 40, steps=1).items != device.suggest("newcomer", 40).items


def test_a_stranger_gets_what_the_federation_likes(trained: Path, device: Device) -> None:
    """The counts are of all nodes' training rows, not of this node's."""
    found = device.suggest("nobody", 5)
    assert (found.source, found.seen) == ("popularity", 0)
    both = [trained / "nodes" / name for name in ("node-000", "node-001")]
    parts = [Device.opened(folder / "store.sqlite", folder).dataset for folder in both]
    counts = sum(np.bincount(part.train_items, minlength=40) for part in parts)
    assert [score for _, _, score in found.items] == sorted(counts.tolist(), reverse=True)[:5]
    assert counts.sum() > len(device.dataset.train_items)


def test_a_cold_start_moves_towards_the_history_and_touches_nothing_else(device: Device) -> None:
    shared = device.received.tensors
    before = {name: tensor.clone() for name, tensor in shared.items()}
    history = np.array([3, 8, 21])
    strangers = identity_of("a"), identity_of("b")
    assert strangers[0] != strangers[1]
    private = cold_start(device.strategy, shared, history, device.cfg, strangers[0])
    assert all((shared[name] == before[name]).all() for name in shared)
    known = History(history, np.array([len(history)]))
    scores = device._scored(private, known)
    fresh = cold_start(device.strategy, shared, history, device.cfg, strangers[0], steps=1)
    assert scores[history].mean() > device._scored(fresh, known)[history].mean()


def test_parameters_and_state_belong_to_the_same_round(device: Device) -> None:
    """After training ended, the state as of the parameters' round is what evaluation saw."""
    user = trained_user(device)
    has, _ = device.store.read(device.run_id, np.array([user]), device.received.round)
    assert has[0]


def test_without_a_run_there_is_nothing_to_go_by(tmp_path: Path) -> None:
    cfg = configured(tmp_path)
    (written,) = distribute(cfg, tmp_path / "nodes", [20])
    path = written.folder / "store.sqlite"
    with pytest.raises(StoreError, match="there is no such store"):
        Device.opened(path, written.folder)
    UserStore(path, read_shard(written.folder).shard_key).close()
    with pytest.raises(StoreError, match="no parameters were received yet"):
        Device.opened(path, written.folder)


def test_a_listed_user_without_a_row_gets_a_cold_start(device: Device) -> None:
    user = trained_user(device)
    with device.store._file.writing() as db:
        db.execute("DELETE FROM state WHERE user=?", (user,))
    found = device.suggest(str(user), 5)
    assert found.source == "cold start"
    assert found.seen == len(device.dataset.train_of(user)) + len(device.dataset.heldout_of(user))


def test_counts_of_the_node_where_the_federations_were_not_received(device: Device) -> None:
    with device.store._file.writing() as db:
        db.execute("DELETE FROM received WHERE kind='popularity'")
    found = device.suggest("nobody", 5)
    counts = np.bincount(device.dataset.train_items, minlength=40)
    assert found.source == "popularity"
    assert [score for _, _, score in found.items] == sorted(counts.tolist(), reverse=True)[:5]


def test_the_state_of_the_round_received_stays_readable(trained: Path, device: Device) -> None:
    """Training requests of round r carry the parameters of r - 1: rows of r are newer."""
    store, run = device.store, device.run_id
    user, received = trained_user(device), device.received
    _, before = store.read(run, np.array([user]), received.round)
    assert before
    later = Received.of("model", ROUNDS, received.config_json, received.tensors)
    key = TrainKey(ROUNDS + 1, ROUNDS, 0, b"next", (ROUNDS + 1,))
    rows = np.ones((1, len(before) // 4), dtype="<f4")
    store.commit(run, key, np.array([user]), rows, b"", later)
    kept = store.received(run, "model")
    assert kept is not None
    assert kept.round == ROUNDS
    assert store.read(run, np.array([user]), kept.round)[1] == before
    assert store.read(run, np.array([user]), ROUNDS + 1)[1] == rows.tobytes()


def test_what_came_before_stays_where_a_commit_fails(device: Device) -> None:
    store, run = device.store, device.run_id
    before = store.received(run, "model")
    other = Received.of("model", ROUNDS, "{}", {"item_emb": torch.ones(40, 2)})
    key = TrainKey(ROUNDS + 1, ROUNDS, 0, b"next", (ROUNDS,))
    with pytest.raises(StoreError, match="do not fit the run's layout"):
        store.commit(run, key, np.array([0]), np.ones((1, 1), dtype="<f4"), b"", other)
    store._file._connected().execute("PRAGMA query_only=ON")
    with pytest.raises(StoreError, match=r"store\.sqlite: the file cannot be written"):
        store.receive(run, other)
    with pytest.raises(StoreError, match=r"store\.sqlite: the file cannot be written"):
        store.forget(0)
    assert store.received(run, "model") == before


def test_nothing_is_written_where_the_same_comes_again(folder: Path, device: Device) -> None:
    before = log_of(folder)
    device.store.receive(device.run_id, device.received)
    assert log_of(folder) == before


def test_a_catalogue_of_other_items_is_refused(folder: Path, device: Device) -> None:
    few = {n: t[:-1].clone() for n, t in device.received.tensors.items()}
    config = device.received.config_json
    device.store.receive(device.run_id, Received.of("model", ROUNDS, config, few))
    with pytest.raises(StoreError, match=r"was of 39 items, the catalogue in .* has 40"):
        Device.opened(folder / "store.sqlite", folder)
