"""``fedrecgel doctor``: sound and broken stores, without a trace; files of the first version."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from node_alone import log_of

from client_app import doctor
from client_app.doctor import Report, examine
from client_app.node_folder import read_shard
from client_app.private_rows import RowLayout
from client_app.store_file import SCHEMA_1
from client_app.user_store import UserStore
from server_app.cli import run_command


def test_a_sound_store_is_not_touched(folder: Path) -> None:
    path = folder / "store.sqlite"
    before = [path.read_bytes(), log_of(folder)]
    report = examine(path)
    assert report.problems == ()
    assert (report.owner, report.runs) == ("000000-of-000002", 1)
    assert report.rows >= report.users > 0
    assert [path.read_bytes(), log_of(folder)] == before


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
