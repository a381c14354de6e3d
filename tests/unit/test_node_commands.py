"""Commands on a node's machine: recommend, forget, export, import."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import tiny_run
from node_alone import ROUNDS, configured, log_of, trained_user

from client_app.doctor import examine
from client_app.node_folder import read_shard
from client_app.on_device import Device
from client_app.private_rows import RowLayout
from client_app.store_file import StoreError
from client_app.transfer import install
from client_app.user_store import UserStore
from server_app.cli import run_command


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
    assert "these are the most popular" in capsys.readouterr().out


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
    assert has[0] and data in (folder / "store.sqlite").read_bytes() + log_of(folder)
    device.store.close()
    assert run_command(["forget", "--node-store", store, "--user", str(user)]) == 0
    assert f"user {user} is forgotten" in capsys.readouterr().out
    assert data not in (folder / "store.sqlite").read_bytes() + log_of(folder)
    assert device.suggest(str(user), 3).source == "popularity"
    cfg = configured(folder.parent)
    node = tiny_run.open_node({"data-path": str(folder)}, tiny_run.header(cfg, "later"))
    assert user not in node.users
    asked = np.array([user, int(node.users[0])])
    assert node.part(asked).tolist() == [int(node.users[0])]
    assert run_command(["forget", "--node-store", store, "--user", "nobody"]) == 2


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
    # The copy is from before user 0 was forgotten: the user stays so.
    assert UserStore(path, read_shard(folder).shard_key).forgotten().tolist() == [0]


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
