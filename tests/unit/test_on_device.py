"""What a node can do by itself after training: recommend, forget, move, examine."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import tiny_run
import torch

from client_app import doctor
from client_app.cold_start import cold_start, identity_of
from client_app.distribute import distribute
from client_app.doctor import Report, examine
from client_app.node_folder import read_shard
from client_app.on_device import Device
from client_app.private_rows import RowLayout
from client_app.received import Received
from client_app.retention import TrainKey
from client_app.store_file import SCHEMA_1, StoreError
from client_app.transfer import install
from client_app.user_store import UserStore
from conf.tree import Config
from server_app.cli import run_command
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


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nodes with data of their own after a run, in process."""
    place = tmp_path_factory.mktemp("trained")
    cfg = configured(place)
    folders = [written.folder for written in distribute(cfg, place / "nodes", [10, 10])]
    with (folders[0] / "interactions.inter").open("a") as file:
        file.write(NEWCOMER)
    grid = LocalGrid(2, node_configs=[{"data-path": str(folder)} for folder in folders])
    run_server(grid, cfg)
    return place


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of the first node's folder, to be changed at will."""
    return shutil.copytree(trained / "nodes" / "node-000", tmp_path / "node-000")


@pytest.fixture
def device(folder: Path) -> Device:
    return Device.opened(folder / "store.sqlite", folder)


def trained_user(device: Device) -> int:
    return int(device.store.trained_users(device.run_id)[0])


# ---- recommendations ---------------------------------------------------------------------
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
    scores = device._scored(private)
    fresh = cold_start(device.strategy, shared, history, device.cfg, strangers[0], steps=1)
    assert scores[history].mean() > device._scored(fresh)[history].mean()


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


# ---- commands ----------------------------------------------------------------------------
def test_recommend_on_a_node(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(folder / "store.sqlite")
    arguments = ["recommend", "--node-store", store, "--user", "newcomer", "--k", "3"]
    assert run_command(arguments) == 0
    assert "the user was not trained: a private state was fitted" in capsys.readouterr().out
    assert run_command([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["user"], found["source"], found["left_out"]) == ("newcomer", "cold start", 4)
    assert len(found["items"]) == 3
    assert run_command(["recommend", "--node-store", store, "--user", "nobody", "--k", "3"]) == 0
    assert "these are the most popular items" in capsys.readouterr().out


def test_recommend_from_a_named_run_of_the_node(
    folder: Path, device: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    user = str(trained_user(device))
    arguments = ["recommend", "--node-store", str(folder / "store.sqlite"), "--user", user]
    assert run_command([*arguments, "--run", device.run_id, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"user", "run", "round", "source", "left_out", "items"}
    assert (found["run"], found["round"]) == (device.run_id, ROUNDS)
    assert found["source"] == "private embedding"
    assert set(found["items"][0]) == {"item", "title", "score"}
    assert run_command([*arguments, "--run", "another"]) == 1
    assert "store.sqlite: has no run another" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--node-store", "s", "--hide-heldout"], "--hide-heldout does not go with"),
        (["--run", "r", "--steps", "3"], "--steps does not go with"),
        ([], "give --run or --node-store"),
    ],
)
def test_options_that_say_nothing_are_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["recommend", "--user", "1", *arguments]) == 2
    assert words in capsys.readouterr().err


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
    before = _log(folder)
    device.store.receive(device.run_id, device.received)
    assert _log(folder) == before


def test_a_catalogue_of_other_items_is_refused(folder: Path, device: Device) -> None:
    few = {n: t[:-1].clone() for n, t in device.received.tensors.items()}
    config = device.received.config_json
    device.store.receive(device.run_id, Received.of("model", ROUNDS, config, few))
    with pytest.raises(StoreError, match=r"was of 39 items, the catalogue in .* has 40"):
        Device.opened(folder / "store.sqlite", folder)


@pytest.mark.parametrize("command", ["recommend", "forget"])
def test_errors_are_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    path = folder / "store.sqlite"
    UserStore(path, read_shard(folder).shard_key).close()  # nothing is left in its log
    asked = [command, "--node-store", str(path), "--user", "0"]
    elsewhere = folder.parent / "lonely.sqlite"
    elsewhere.write_bytes(path.read_bytes())
    assert run_command([command, "--node-store", str(elsewhere), "--user", "0"]) == 2
    assert "is not a node's data folder" in capsys.readouterr().err
    path.write_bytes(b"nonsense" * 999)
    assert run_command(asked) == 1
    shown = capsys.readouterr().err
    assert "store.sqlite: the file is damaged or not a store" in shown
    assert "Traceback" not in shown
    path.unlink()
    assert run_command(asked) == 2
    assert "there is no file" in capsys.readouterr().err


def test_forgotten_users_leave_no_row_and_no_part(
    folder: Path, device: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    user, store = trained_user(device), str(folder / "store.sqlite")
    has, data = device.store.read(device.run_id, np.array([user]), ROUNDS)
    assert has[0] and data in (folder / "store.sqlite").read_bytes() + _log(folder)
    device.store.close()
    assert run_command(["forget", "--node-store", store, "--user", str(user)]) == 0
    assert f"user {user} is forgotten" in capsys.readouterr().out
    assert data not in (folder / "store.sqlite").read_bytes() + _log(folder)
    assert device.suggest(str(user), 3).source == "popularity"
    cfg = configured(folder.parent)
    node = tiny_run.open_node({"data-path": str(folder)}, tiny_run.header(cfg, "later"))
    assert user not in node.users
    asked = np.array([user, int(node.users[0])])
    assert node.part(asked).tolist() == [int(node.users[0])]
    assert run_command(["forget", "--node-store", store, "--user", "nobody"]) == 2


def _log(folder: Path) -> bytes:
    path = folder / "store.sqlite-wal"
    return path.read_bytes() if path.exists() else b""


def test_export_and_import(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, copy = folder / "store.sqlite", tmp_path / "copy.sqlite"
    assert run_command(["export", "--node-store", str(store), "--out", str(copy)]) == 0
    assert run_command(["export", "--node-store", str(store), "--out", str(copy)]) == 1
    assert "exists" in capsys.readouterr().err
    assert run_command(["import", str(copy), "--node-store", str(store)]) == 1
    assert "--force replaces it" in capsys.readouterr().err
    before = Device.opened(store, folder).suggest("0", 5)
    store.unlink()
    assert run_command(["import", str(copy), "--node-store", str(store)]) == 0
    assert Device.opened(store, folder).suggest("0", 5) == before


def exported(store: Path, target: Path) -> Path:
    assert run_command(["export", "--node-store", str(store), "--out", str(target)]) == 0
    return target


def test_a_store_of_another_shard_is_not_imported(
    trained: Path, folder: Path, tmp_path: Path
) -> None:
    other = exported(trained / "nodes" / "node-001" / "store.sqlite", tmp_path / "copy.sqlite")
    store = folder / "store.sqlite"
    before = store.read_bytes()
    with pytest.raises(StoreError, match="belongs to shard 000001-of-000002"):
        install(other, store, replace=True)
    assert store.read_bytes() == before


def test_a_broken_copy_is_not_imported(folder: Path, tmp_path: Path) -> None:
    store = folder / "store.sqlite"
    copy = exported(store, tmp_path / "copy.sqlite")
    with sqlite3.connect(copy) as db:
        db.execute("UPDATE state SET row=zeroblob(3)")
    db.close()
    before, names = store.read_bytes(), sorted(folder.iterdir())
    with pytest.raises(StoreError, match=r"copy\.sqlite: broken: .* 3 bytes, not"):
        install(copy, store, replace=True)
    assert (store.read_bytes(), sorted(folder.iterdir())) == (before, names)


def test_a_store_in_use_is_not_replaced_and_its_log_does_not_outlive_it(
    folder: Path, tmp_path: Path
) -> None:
    path = folder / "store.sqlite"
    copy = exported(path, tmp_path / "copy.sqlite")
    store = UserStore(path, read_shard(folder).shard_key)
    store.forget(0)
    with pytest.raises(StoreError, match=r"is in use .*: stop its node first"):
        install(copy, path, replace=True)
    assert store.forgotten().tolist() == [0]
    store.close()
    install(copy, path, replace=True)
    assert UserStore(path, read_shard(folder).shard_key).forgotten().tolist() == []


def test_a_damaged_store_is_replaced(folder: Path, tmp_path: Path) -> None:
    path = folder / "store.sqlite"
    copy = exported(path, tmp_path / "copy.sqlite")
    path.write_bytes(b"nonsense" * 999)
    install(copy, path, replace=True)
    assert examine(path).problems == ()


def test_a_live_store_is_exported_not_copied(folder: Path, tmp_path: Path) -> None:
    path = folder / "store.sqlite"
    store = UserStore(path, read_shard(folder).shard_key)
    store.start_run("later", RowLayout(("emb",), ((3,),), "<f4"))  # in the log as yet
    with pytest.raises(StoreError, match="with a log: `fedrecgel export` copies it"):
        install(path, tmp_path / "store.sqlite", replace=False)
    assert [p.name for p in tmp_path.glob("*.sqlite")] == []
    store.close()


# ---- doctor ------------------------------------------------------------------------------
def test_a_sound_store_is_not_touched(folder: Path) -> None:
    path = folder / "store.sqlite"
    before = [path.read_bytes(), _log(folder)]
    report = examine(path)
    assert report.problems == ()
    assert (report.owner, report.runs) == ("000000-of-000002", 1)
    assert report.rows >= report.users > 0
    assert [path.read_bytes(), _log(folder)] == before


def test_nothing_is_made_beside_a_store_at_rest(folder: Path) -> None:
    path = folder / "store.sqlite"
    UserStore(path, read_shard(folder).shard_key).close()
    assert [file.name for file in folder.glob("store*")] == ["store.sqlite"]
    assert examine(path).problems == ()
    assert [file.name for file in folder.glob("store*")] == ["store.sqlite"]


def test_a_store_in_use_is_seen_as_last_committed(folder: Path) -> None:
    path = folder / "store.sqlite"
    store = UserStore(path, read_shard(folder).shard_key)
    layout = RowLayout(("emb",), ((3,),), "<f4")
    store.start_run("later", layout)
    with store._file.writing() as db:
        db.execute("DELETE FROM run WHERE run_id='later'")
        assert examine(path).runs == 2  # neither kept out nor shown what is not committed
    assert examine(path).runs == 1
    store.close()


def test_what_changes_during_the_examination_is_looked_at_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages read before and after a checkpoint of another process do not fit together."""
    path, looks = folder / "store.sqlite", list[int]()

    def torn(path: Path, db: sqlite3.Connection) -> Report:
        looks.append(1)
        if len(looks) == 1:
            os.utime(path)
            return Report(path, problems=("torn",))
        return Report(path)

    monkeypatch.setattr(doctor, "_report", torn)
    assert (examine(path).problems, len(looks)) == ((), 2)
    monkeypatch.setattr(doctor, "_report", lambda path, db: Report(path, problems=("torn",)))
    assert examine(path).problems == ("torn",)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE state SET row=zeroblob(3)", "3 bytes, not"),
        (
            "UPDATE state SET round=99 WHERE rowid=(SELECT max(rowid) FROM state)",
            "round 99 of a run that reached 4",
        ),
        ("UPDATE answer SET content=x'ff'", "cannot be read"),
        ("UPDATE received SET content=x'ff'", "the parameters received are damaged"),
        ("UPDATE state SET run=7", "belong to no run"),
        ("INSERT INTO forgotten SELECT user FROM state LIMIT 1", "was forgotten and has rows"),
        ("PRAGMA user_version=9", "newer version"),
        ("PRAGMA application_id=9", "not a store of this application"),
    ],
)
def test_what_is_broken_is_named(folder: Path, damage: str, words: str) -> None:
    path = folder / "store.sqlite"
    with sqlite3.connect(path) as db:
        db.execute(damage)
    db.close()
    assert any(words in problem for problem in examine(path).problems)


def test_a_row_that_is_not_finite(folder: Path) -> None:
    path = folder / "store.sqlite"
    with sqlite3.connect(path) as db:
        ((size,),) = db.execute("SELECT length(row) FROM state LIMIT 1")
        broken = np.full(size // 4, np.nan, dtype="<f4").tobytes()
        db.execute("UPDATE state SET row=? WHERE rowid=(SELECT min(rowid) FROM state)", (broken,))
    db.close()
    assert any("infinite or NaN" in problem for problem in examine(path).problems)


def test_the_command_fails_for_a_broken_store(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.sqlite").write_bytes(b"nonsense" * 999)
    good, bad = str(folder / "store.sqlite"), str(tmp_path / "x.sqlite")
    assert run_command(["doctor", "--store", good]) == 0
    assert run_command(["doctor", "--store", good, "--store", bad]) == 1
    shown = capsys.readouterr()
    assert f"{good}: sound: shard 000000-of-000002" in shown.out
    assert f"{bad}: broken: the file is damaged or not a store" in shown.out
    assert "1 of 2 stores are broken" in shown.err
    assert not (tmp_path / "missing").exists()
    assert run_command(["doctor", "--store", str(tmp_path / "missing")]) == 1
    assert not (tmp_path / "missing").exists()


def test_a_store_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    with sqlite3.connect(path) as db:
        db.executescript(SCHEMA_1)
        db.execute("INSERT INTO meta VALUES ('shard')")
        db.execute("INSERT INTO run VALUES (1, 'run', 'layout', 8, 0, 3, 0, '[]')")
        db.execute("INSERT INTO state VALUES (1, 5, 3, x'0000000000000000')")
        db.execute("PRAGMA application_id=0x46524731")
        db.execute("PRAGMA user_version=1")
    db.close()
    assert examine(path).problems == ("run run: its layout cannot be read",)
    store = UserStore(path, "shard")
    assert store.forgotten().tolist() == []
    assert store.newest_run() is None
    has, data = store.read("run", np.array([5]), 3)
    assert has[0] and data == bytes(8)
    assert store.forget(5) == 1
    store.close()
