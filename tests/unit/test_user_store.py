"""The node's store: versions, idempotency, resume, retention, and errors with old state kept."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client_app import store_file
from client_app.private_rows import RowLayout
from client_app.retention import TrainKey
from client_app.store_file import SCHEMA_VERSION, StoreError
from client_app.user_store import StaleRequestError, UserStore

RUN, OWNER = "run-a", "000000-of-000001"
LAYOUT = RowLayout(("emb", "step"), ((3,), ()), "<f4")


@pytest.fixture
def store(tmp_path: Path) -> UserStore:
    return opened(tmp_path / "node.sqlite")


def opened(path: Path, owner: str = OWNER) -> UserStore:
    store = UserStore(path, owner)
    store.start_run(RUN, LAYOUT)
    return store


def key(
    round_: int, *keep: int, base: int | None = None, start: int = 0, tag: str = ""
) -> TrainKey:
    base = round_ - 1 if base is None else base
    return TrainKey(round_, base, start, f"{round_}/{base}/{tag}".encode(), keep)


def rows(value: float, users: int) -> np.ndarray:
    return np.full((users, LAYOUT.width), value, dtype="<f4")


def commit(store: UserStore, key: TrainKey, *users: int, value: float | None = None) -> bytes:
    value = float(key.round) if value is None else value
    block = rows(value, len(users))
    return store.commit(RUN, key, np.array(users), block, f"answer {value}".encode())


def values(store: UserStore, as_of: int, *users: int) -> list[float | None]:
    """First number of each user's row, None for a user without one."""
    mask_U, data = store.read(RUN, np.array(users), as_of)
    found = iter(LAYOUT.from_bytes(data)[:, 0].tolist())
    return [next(found) if has_row else None for has_row in mask_U]


def rounds_of(store: UserStore, user: int) -> list[int]:
    with sqlite3.connect(store.path) as db:
        found = db.execute("SELECT round FROM state WHERE user=? ORDER BY round", (user,))
        return [r for (r,) in found]


def on_disk(store: UserStore) -> bytes:
    return b"".join(path.read_bytes() for path in store.path.parent.iterdir())


def test_layout_round_trip_float32_and_float64() -> None:
    for dtype in (torch.float32, torch.float64):
        block = {"b": torch.randn(4, 2, 3, dtype=dtype), "a": torch.randn(4, dtype=dtype)}
        layout = RowLayout.of({n: t[0] for n, t in block.items()})
        packed = layout.pack({n: block[n] for n in ("a", "b")})
        assert packed.shape == (4, 7)
        assert layout.row_bytes == 7 * packed.itemsize
        back = layout.unpack(layout.from_bytes(packed.tobytes()))
        assert list(back) == ["b", "a"]
        assert all(torch.equal(back[n], block[n]) for n in block)


def test_layout_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"or all float64, got .*int64"):
        RowLayout.of({"a": torch.zeros(2), "n": torch.zeros(2, dtype=torch.int64)})
    with pytest.raises(ValueError, match="got none"):
        RowLayout.of({})
    with pytest.raises(ValueError, match="'emb' is"):
        LAYOUT.pack({"emb": torch.zeros(2, 4), "step": torch.zeros(2)})
    with pytest.raises(ValueError, match="expected"):
        LAYOUT.pack({"emb": torch.zeros(2, 3)})


def test_state_as_of_a_round_is_the_newest_row_up_to_it(store: UserStore) -> None:
    commit(store, key(2, 0), 1, 2)
    commit(store, key(5, 0), 2, 3)
    assert values(store, 0, 1, 2, 3) == [None, None, None]
    assert values(store, 4, 3, 2, 1) == [None, 2.0, 2.0]
    assert values(store, 5, 1, 2, 3) == [2.0, 5.0, 5.0]
    assert values(store, 99, 7) == [None]


def test_rows_survive_closing_and_runs_do_not_mix(tmp_path: Path) -> None:
    store = opened(tmp_path / "node.sqlite")
    commit(store, key(1), 1)
    store.close()
    store = opened(tmp_path / "node.sqlite")
    assert values(store, 1, 1) == [1.0]
    store.start_run("run-b", LAYOUT)
    assert not store.read("run-b", np.array([1]), 1)[0].any()


def test_same_request_is_answered_from_the_store(store: UserStore) -> None:
    assert store.answer(RUN, key(1)) is None
    commit(store, key(1), 1)
    assert store.answer(RUN, key(1)) == b"answer 1.0"
    # Another process that trained the same request meanwhile: the first commit counts.
    assert commit(store, key(1), 1, value=9.0) == b"answer 1.0"
    assert values(store, 1, 1) == [1.0]


def test_same_round_with_another_request_is_an_error(store: UserStore) -> None:
    commit(store, key(3), 1)
    for stale in (key(3, tag="x"), key(2)):
        with pytest.raises(StaleRequestError, match="not trained twice"):
            store.answer(RUN, stale)
        with pytest.raises(StaleRequestError, match="not trained twice"):
            commit(store, stale, 1, value=9.0)
    assert values(store, 3, 1) == [3.0]


def test_resumed_server_rolls_back_and_trains_again(store: UserStore) -> None:
    for round_ in (1, 2, 3, 4):
        commit(store, key(round_, 2 if round_ > 2 else 0), 1, 10 + round_)
    again = key(3, 2, start=1, tag="resumed")
    assert store.answer(RUN, again) is None
    commit(store, again, 1, value=33.0)
    assert values(store, 2, 1, 12) == [2.0, 2.0]
    assert values(store, 9, 1, 12, 13, 14) == [33.0, 2.0, None, None]
    # The abandoned round 4 is trained anew as well, and the old server is turned away.
    assert store.answer(RUN, key(4, 2, start=1)) is None
    with pytest.raises(StaleRequestError, match="earlier start of the server"):
        store.answer(RUN, key(5, 2, start=0))


def test_resumed_server_has_its_first_round_trained_again(store: UserStore) -> None:
    """Its answer is the same, and there is no state to be told apart from abandoned state."""
    commit(store, key(1, 0), 1)
    commit(store, key(2, 0), 1)
    again = replace(key(2, 0), incarnation=1)
    assert store.answer(RUN, again) is None
    assert rounds_of(store, 1) == []
    commit(store, replace(key(1, 0), incarnation=1), 1)
    commit(store, again, 1, value=22.0)
    assert store.answer(RUN, again) == b"answer 22.0"
    assert values(store, 2, 1) == [22.0]


def test_rounds_that_a_resumed_server_left_out_are_dropped(store: UserStore) -> None:
    """Rounds 1 to 5, resumed from the checkpoint of round 2; round 3 goes without this node.

    Its first request is for round 4, with base round 3: what lies here of round 3 is of the
    abandoned rounds, and nobody may train from it. The rows of 1 and 2 are the run's.
    """
    for round_ in range(1, 6):
        commit(store, key(round_, 2 if round_ > 2 else 0), 1, 10 + round_)
    first = key(4, 2, start=1, tag="resumed")
    assert store.answer(RUN, first) is None
    assert values(store, 3, 1, 12, 13) == [2.0, 2.0, None]
    commit(store, first, 1, value=44.0)
    assert rounds_of(store, 1) == [2, 4]
    assert rounds_of(store, 13) == []


def test_a_commit_alone_drops_the_abandoned_rounds_too(store: UserStore) -> None:
    for round_ in range(1, 6):
        commit(store, key(round_, 0), 1, 2)
    commit(store, key(4, 2, start=1), 1, value=44.0)
    assert values(store, 4, 1, 2) == [44.0, 2.0]


def test_a_later_request_of_a_resumed_server_drops_nothing(store: UserStore) -> None:
    commit(store, key(1, 0), 1)
    for round_, checkpoint in ((2, 1), (3, 1), (4, 1)):
        commit(store, key(round_, checkpoint, start=1), 1)
    assert rounds_of(store, 1) == [1, 2, 3, 4]


def test_resume_without_a_checkpoint_in_the_request_goes_by_the_base_round(
    store: UserStore,
) -> None:
    for round_ in range(1, 5):
        commit(store, key(round_), 1)
    commit(store, key(4, start=1), 1, value=44.0)
    assert values(store, 3, 1) == [3.0]
    assert values(store, 4, 1) == [44.0]


def test_resume_at_a_round_no_longer_kept_changes_nothing(store: UserStore) -> None:
    for round_ in range(1, 6):
        commit(store, key(round_), 1)
    with pytest.raises(StoreError, match=r"node\.sqlite: the state of round 2 is no longer kept"):
        store.answer(RUN, key(3, 2, start=1))
    assert values(store, 5, 1) == [5.0]
    assert store.answer(RUN, key(5)) == b"answer 5.0"


def test_pruning_keeps_what_a_resume_and_the_selected_round_need(store: UserStore) -> None:
    """User 1 is trained every round. After round 9 with checkpoint 6, its selected round 3
    and the currently selected 6: needed are the rows as of 3 and 6 and all newer than 6."""
    for round_ in range(1, 9):
        commit(store, key(round_, 3 if round_ > 3 else 0, 3 if round_ > 3 else 0), 1)
    commit(store, key(9, 6, 3, 6), 1)
    assert rounds_of(store, 1) == [3, 6, 7, 8, 9]
    with pytest.raises(StoreError, match=r"state of round 5 is no longer kept.*from 6"):
        store.read(RUN, np.array([1]), 5)
    assert values(store, 3, 1) == [3.0]
    assert values(store, 0, 1) == [None]


def test_pruning_keeps_older_rows_of_users_trained_rarely(store: UserStore) -> None:
    commit(store, key(1, 0), 1, 2)
    commit(store, key(7, 6, 5), 1)
    commit(store, key(8, 6, 5), 1)
    assert rounds_of(store, 1) == [1, 7, 8]
    assert values(store, 5, 1, 2) == [1.0, 1.0]
    assert values(store, 6, 1, 2) == [1.0, 1.0]


def test_without_a_checkpoint_only_the_base_stays(store: UserStore) -> None:
    for round_ in range(1, 6):
        commit(store, key(round_), 1)
    assert rounds_of(store, 1) == [4, 5]


def test_a_round_dropped_once_is_not_offered_again(store: UserStore) -> None:
    for round_ in range(1, 6):
        commit(store, key(round_), 1)
    commit(store, key(6, 5, 2), 1)  # asks to keep round 2 when it is gone
    with pytest.raises(StoreError, match="state of round 2"):
        store.read(RUN, np.array([1]), 2)


def test_resume_at_a_kept_round_makes_it_the_newest(store: UserStore) -> None:
    for round_ in range(1, 5):
        commit(store, key(round_, 0), 1)
    commit(store, key(5, 4, 2), 1)
    commit(store, key(3, 2, base=2, start=1), 1, value=33.0)
    assert rounds_of(store, 1) == [2, 3]
    assert values(store, 3, 1) == [33.0]


def test_only_the_last_two_answers_stay(store: UserStore) -> None:
    for round_ in (1, 2, 3):
        commit(store, key(round_, 0), 1)
    assert store.answer(RUN, key(2, 0)) == b"answer 2.0"
    with pytest.raises(StaleRequestError, match="no longer kept"):
        store.answer(RUN, key(1, 0))


def test_two_processes_at_once_one_trains_the_other_gets_its_answer(tmp_path: Path) -> None:
    stores = [opened(tmp_path / "node.sqlite") for _ in range(2)]
    answers: list[bytes] = []
    both = threading.Barrier(2)

    def train(store: UserStore, value: float) -> None:
        both.wait()
        answers.append(commit(store, key(1), 1, value=value))

    threads = [threading.Thread(target=train, args=(s, float(v))) for v, s in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers[0] == answers[1]
    assert answers[0] == f"answer {values(stores[0], 1, 1)[0]}".encode()


def test_many_openers_of_a_new_file(tmp_path: Path) -> None:
    problems: list[Exception] = []

    def start() -> None:
        try:
            opened(tmp_path / "node.sqlite")
        except (StoreError, sqlite3.Error) as error:
            problems.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_full_disk_keeps_the_old_state(store: UserStore) -> None:
    commit(store, key(1), *range(10))
    with store._file.writing() as db:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
    store._file._connected().execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreError, match=r"node\.sqlite: no space left .* state is intact"):
        commit(store, key(2), *range(5000))
    assert values(store, 2, 0, 9, 4000) == [1.0, 1.0, None]
    assert store.answer(RUN, key(2)) is None


def test_read_only_file_keeps_the_old_state(store: UserStore) -> None:
    commit(store, key(1), 1)
    store._file._connected().execute("PRAGMA query_only=ON")
    with pytest.raises(StoreError, match=r"node\.sqlite: the file cannot be written"):
        commit(store, key(2), 1)
    assert values(store, 2, 1) == [1.0]


def test_a_file_that_cannot_be_a_store(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database, and long enough to have a header" * 99)
    with pytest.raises(StoreError, match=r"text: the file is damaged or not a store"):
        opened(tmp_path / "text")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match=r"folder: cannot be opened .*store-path"):
        opened(tmp_path / "folder")
    with pytest.raises(StoreError, match=r"text/x: cannot be opened"):
        opened(tmp_path / "text" / "x")
    with sqlite3.connect(tmp_path / "other.sqlite") as db:
        db.execute("CREATE TABLE t(a)")
    with pytest.raises(StoreError, match=r"other\.sqlite: this file is not a store"):
        opened(tmp_path / "other.sqlite")


def test_a_damaged_store_is_reported(tmp_path: Path) -> None:
    store = opened(tmp_path / "node.sqlite")
    commit(store, key(1), *range(2000))
    store._file.truncate_log()
    store.close()
    content = bytearray((tmp_path / "node.sqlite").read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    (tmp_path / "node.sqlite").write_bytes(content)
    with pytest.raises(StoreError, match=r"node\.sqlite: the file is damaged"):
        values(opened(tmp_path / "node.sqlite"), 1, 1)


def test_newer_schema_and_foreign_shard_are_refused(tmp_path: Path) -> None:
    opened(tmp_path / "node.sqlite").close()
    with pytest.raises(StoreError, match=rf"belongs to shard {OWNER}.*store-path"):
        opened(tmp_path / "node.sqlite", "000001-of-000002")
    with sqlite3.connect(tmp_path / "node.sqlite") as db:
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    with pytest.raises(StoreError, match="newer version of this application"):
        opened(tmp_path / "node.sqlite")


def test_another_layout_or_unknown_run_is_refused(store: UserStore) -> None:
    with pytest.raises(StoreError, match="another layout"):
        store.start_run(RUN, RowLayout(("emb",), ((4,),), "<f4"))
    with pytest.raises(StoreError, match="has no run other"):
        store.read("other", np.array([1]), 1)
    with pytest.raises(StoreError, match="do not fit"):
        store.commit(RUN, key(1), np.array([1]), np.zeros((1, 9), dtype="<f4"), b"")


def test_forget_removes_the_users_bytes_from_the_file(store: UserStore) -> None:
    secret = np.array([[0.123456, -9.87654, 3.14159, 7.0]], dtype="<f4")
    store.commit(RUN, key(1), np.array([1]), secret, b"answer")
    commit(store, key(2), 2)
    assert secret.tobytes() in on_disk(store)
    assert store.forget(1) == 1
    store.close()
    assert secret.tobytes() not in on_disk(store)
    store = opened(store.path)
    assert values(store, 2, 1, 2) == [None, 2.0]
    assert store.forget(1) == 0


def test_forget_reaches_rows_that_were_pruned_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that was replaced by a newer one leaves no bytes behind either.

    Builds of SQLite differ in whether they overwrite deleted rows by default: here they do not.
    """
    connect = sqlite3.connect

    def connect_with_defaults_off(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.execute("PRAGMA secure_delete=OFF")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_with_defaults_off)
    store, rng, secrets = opened(tmp_path / "node.sqlite"), np.random.default_rng(0), set[bytes]()
    for round_ in range(1, 31):
        users = np.union1d([7], rng.choice(400, 60, replace=False))
        block = rng.random((len(users), LAYOUT.width)).astype("<f4")
        secrets.add(block[np.searchsorted(users, 7)].tobytes())
        checkpoint = (round_ - 1) // 5 * 5
        store.commit(RUN, key(round_, checkpoint), users, block, rng.bytes(9000))
    assert store.forget(7) == 6  # of the last checkpoint, 25, and newer
    store.close()
    assert [secret for secret in secrets if secret in on_disk(store)] == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_file, "BUSY_SECONDS", 0.05)


@pytest.mark.usefixtures("impatient")
def test_forget_says_when_a_reader_keeps_the_bytes_in_the_log(tmp_path: Path) -> None:
    store = opened(tmp_path / "node.sqlite")
    secret = np.array([[0.123456, -9.87654, 3.14159, 7.0]], dtype="<f4")
    store.commit(RUN, key(1), np.array([1]), secret, b"answer")
    reader = sqlite3.connect(store.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM state").fetchone()
    with pytest.raises(StoreError, match=r"node\.sqlite: another process .* -wal file"):
        store.forget(1)
    assert values(store, 1, 1) == [None]  # removed all the same
    assert secret.tobytes() in on_disk(store)
    reader.close()
    assert store.forget(1) == 0  # nothing is left to remove but the bytes
    assert secret.tobytes() not in on_disk(store)


def test_forget_waits_for_a_reader(store: UserStore) -> None:
    secret = np.array([[0.123456, -9.87654, 3.14159, 7.0]], dtype="<f4")
    store.commit(RUN, key(1), np.array([1]), secret, b"answer")
    reader = sqlite3.connect(store.path, isolation_level=None, check_same_thread=False)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM state").fetchone()
    letting_go = threading.Timer(0.2, reader.close)
    letting_go.start()
    assert store.forget(1) == 1
    letting_go.join()
    assert secret.tobytes() not in on_disk(store)


def test_a_user_forgotten_while_training_gets_no_row(store: UserStore) -> None:
    commit(store, key(1), 1, 2)
    assert store.forget(1) == 1
    commit(store, key(2), 1, 2)
    assert values(store, 2, 1, 2) == [None, 2.0]
    assert store.forgotten().tolist() == [1]


def test_an_export_that_fails_leaves_nothing(
    store: UserStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(unfinished: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_file, "put_in_place", full)
    with pytest.raises(StoreError, match=r"copy\.sqlite: the copy cannot be written .*No space"):
        store.export(tmp_path / "copy.sqlite")
    assert not [file for file in tmp_path.iterdir() if "copy" in file.name]


def test_export_is_a_working_copy(store: UserStore, tmp_path: Path) -> None:
    commit(store, key(1), 1)
    store.export(tmp_path / "copy.sqlite")
    assert values(opened(tmp_path / "copy.sqlite"), 1, 1) == [1.0]
    with pytest.raises(StoreError, match=r"copy\.sqlite: the copy cannot be written"):
        store.export(tmp_path / "copy.sqlite")
