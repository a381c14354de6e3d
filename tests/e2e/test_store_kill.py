"""kill -9 at random instants: what was acknowledged is complete, nothing partial is visible."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from client_app.private_rows import RowLayout
from client_app.retention import TrainKey
from client_app.user_store import UserStore

ROOT = Path(__file__).resolve().parents[2]
USERS, KILLS = 200, 6
LAYOUT = RowLayout(("row",), ((64,),), "<f4")

CHILD = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from test_store_kill import commit, opened
store, round_ = opened(sys.argv[3]), int(sys.argv[4])
while True:
    commit(store, round_)
    print(round_, flush=True)
    round_ += 1
"""


def opened(path: Path | str) -> UserStore:
    store = UserStore(path, "shard")
    store.start_run("run", LAYOUT)
    return store


def rows(round_: int) -> np.ndarray:
    """Numbers that only this round's commit can have written, different for every user."""
    values = np.arange(USERS * LAYOUT.width, dtype="<f4").reshape(USERS, LAYOUT.width)
    return (values + 1000 * round_).astype("<f4")


def answer(round_: int) -> bytes:
    # Longer than a page of the file, so that a transaction is many writes.
    return f"{round_:08d}".encode() * 20_000


def key(round_: int) -> TrainKey:
    # The last checkpoint is two rounds back: every commit prunes as well.
    return TrainKey(round_, round_ - 1, 0, f"{round_}".encode(), (max(0, round_ - 3),))


def commit(store: UserStore, round_: int) -> None:
    store.commit("run", key(round_), np.arange(USERS), rows(round_), answer(round_))


def run_and_kill(path: Path, start: int, seconds: float) -> list[int]:
    """Rounds that the child acknowledged before it was killed."""
    arguments = [str(ROOT), str(Path(__file__).parent), str(path), str(start)]
    child = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE)
    assert child.stdout is not None
    first = child.stdout.readline()  # it is committing from now on
    time.sleep(seconds)
    os.kill(child.pid, signal.SIGKILL)
    rest = child.stdout.read()
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    lines = (first + rest).decode().split("\n")
    # The last piece has no newline after it unless it was written in full.
    return [int(line) for line in lines[:-1]]


@pytest.mark.e2e
def test_kill_9_loses_no_acknowledged_round_and_shows_no_partial_one(tmp_path: Path) -> None:
    path = tmp_path / "node.sqlite"
    rng = np.random.default_rng()
    newest = 0
    for _ in range(KILLS):
        acknowledged = run_and_kill(path, newest + 1, float(rng.uniform(0.0, 0.25)))
        store = opened(path)
        last = acknowledged[-1]
        # The commit after the last acknowledged one may have made it too, but only in full.
        committed = [r for r in (last, last + 1) if is_answered(store, r)]
        assert committed[0] == last, "an acknowledged answer is gone"
        newest = committed[-1]
        for round_ in range(max(1, newest - 3), newest + 1):
            has_row_U, data = store.read("run", np.arange(USERS), round_)
            assert has_row_U.all()
            np.testing.assert_array_equal(LAYOUT.from_bytes(data), rows(round_))
        # Nothing of a round that was not committed.
        _, data = store.read("run", np.arange(USERS), newest + 10)
        np.testing.assert_array_equal(LAYOUT.from_bytes(data), rows(newest))
        with store._file.reading() as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        store.close()
    assert newest > KILLS


def is_answered(store: UserStore, round_: int) -> bool:
    stored = store.answer("run", key(round_))
    assert stored in (None, answer(round_))
    return stored is not None
