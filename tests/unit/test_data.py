"""Dataset, its cache, and what happens when files change, break or are wanted by many at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client_app import cache as cache_module
from client_app.cache import Cache
from client_app.data import Dataset, cache_key, load, load_dataset, shard_bounds
from client_app.errors import DataError
from conf.compose import compose
from conf.tree import DatasetConfig, ProtocolConfig, from_json, to_json

ROOT = Path(__file__).resolve().parents[2]
PROTOCOL = ProtocolConfig(name="strict", num_candidates=5)
NUM_USERS, NUM_ITEMS = 8, 14


def content() -> str:
    """User u has items u, …, u + 6 in that order of time, so lacks 7 of the 14."""
    return "".join(f"u{u},i{u + n},1,{n}\n" for u in range(NUM_USERS) for n in range(7))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ratings.csv"
    path.write_text(content())
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def config(file: Path) -> DatasetConfig:
    return DatasetConfig(name="file", path=str(file))


@pytest.fixture
def data(config: DatasetConfig, cache: Cache) -> Dataset:
    return load(config, PROTOCOL, cache)


def entries(cache: Cache) -> list[Path]:
    return sorted((cache.root / "prepared").iterdir())


def test_dataset_holds_the_split(data: Dataset) -> None:
    assert (data.num_users, data.num_items) == (NUM_USERS, NUM_ITEMS)
    assert data.user_ids[3] == "u3"
    assert data.item_ids[data.test_U[3]] == "i9"
    assert data.item_ids[data.validation_U[3]] == "i8"
    assert data.item_ids[data.train_of(3)].tolist() == ["i3", "i4", "i5", "i6", "i7"]
    assert data.heldout_of(3).tolist() == [8, 9]
    assert data.test_candidates_UC.shape == data.validation_candidates_UC.shape == (8, 5)
    assert data.titles is None
    assert data.counts["rows_used"] == 8 * 7


def test_item_counts_are_training_rows_of_the_given_users(data: Dataset) -> None:
    """Users 2 and 3 train on items 2–6 and 3–7."""
    counts = data.item_counts(np.array([2, 3]))
    assert counts.tolist() == [0, 0, 1, 2, 2, 2, 2, 1, 0, 0, 0, 0, 0, 0]
    assert data.item_counts(np.array([], dtype=np.int64)).tolist() == [0] * 14


def test_arrays_are_mapped_and_read_only(data: Dataset) -> None:
    assert not data.train_items.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        data.train_items[0] = 1


def test_paper_protocol_has_no_validation(config: DatasetConfig, cache: Cache) -> None:
    paper = ProtocolConfig(
        name="paper", duplicates="keep", validation=False, num_candidates=5, candidates="notebook"
    )
    data = load(config, paper, cache)
    assert (data.validation_U == -1).all()
    assert data.validation_candidates_UC.shape == (8, 0)
    assert data.heldout_of(0).tolist() == [6]


def test_second_load_prepares_nothing(
    data: Dataset, config: DatasetConfig, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bytes:
        raise AssertionError("the file is read again")

    monkeypatch.setattr(cache_module, "read_bytes", refuse)
    monkeypatch.setitem(sys.modules, "client_app.prepare", None)
    assert load(config, PROTOCOL, cache) is data
    # What is only shown or checked elsewhere does not prepare again either.
    assert load(replace(config, name="other"), replace(PROTOCOL, select="last"), cache) is data


def test_changed_file_is_prepared_anew(
    data: Dataset, config: DatasetConfig, cache: Cache, file: Path
) -> None:
    file.write_text(content() + "".join(f"new,i{n},1,{n}\n" for n in range(5)))
    changed = load(config, PROTOCOL, cache)
    assert changed.num_users == data.num_users + 1
    assert changed.fingerprint != data.fingerprint
    assert changed.catalogue == data.catalogue


@pytest.mark.parametrize(
    "change",
    [{"rating_threshold": 0.5}, {"time": "file_order"}, {"bad_rows": "skip"}, {"users": 9}],
)
def test_key_covers_reading(config: DatasetConfig, change: dict[str, object]) -> None:
    changed = replace(config, **change)  # type: ignore[arg-type]
    assert cache_key(["d"], "/x", config, PROTOCOL) != cache_key(["d"], "/x", changed, PROTOCOL)


@pytest.mark.parametrize(
    "change",
    [
        {"min_interactions": 4},
        {"duplicates": "first"},
        {"validation": False},
        {"num_candidates": 4},
        {"candidates": "notebook"},
    ],
)
def test_key_covers_the_protocol(config: DatasetConfig, change: dict[str, object]) -> None:
    changed = replace(PROTOCOL, **change)  # type: ignore[arg-type]
    assert cache_key(["d"], "/x", config, PROTOCOL) != cache_key(["d"], "/x", config, changed)


def test_same_content_gives_the_same_fingerprint_elsewhere(data: Dataset, tmp_path: Path) -> None:
    copy = tmp_path / "copy.csv"
    copy.write_text(content())
    again = load(DatasetConfig(name="b", path=str(copy)), PROTOCOL, Cache(tmp_path / "other"))
    assert again is not data
    assert again.fingerprint == data.fingerprint
    assert again.catalogue == data.catalogue


@pytest.mark.parametrize("damage", ["truncated", "missing", "manifest", "empty manifest"])
def test_damaged_entry_is_rebuilt(
    data: Dataset, config: DatasetConfig, cache: Cache, damage: str
) -> None:
    (entry,) = entries(cache)
    before, expected = data.fingerprint, data.train_items.copy()
    if damage == "truncated":
        # Another file in its place: cutting this one would cut it under the open mapping.
        shortened = (entry / "train_items.npy").read_bytes()[:-8]
        (entry / "train_items.npy").unlink()
        (entry / "train_items.npy").write_bytes(shortened)
    elif damage == "missing":
        (entry / "test_U.npy").unlink()
    else:
        (entry / "manifest.json").write_text("{}" if "empty" in damage else "not JSON")
    again = load(config, PROTOCOL, cache)
    assert again is not data
    assert again.fingerprint == before
    np.testing.assert_array_equal(again.train_items, expected)
    assert entries(cache) == [entry]


def test_leftovers_of_a_killed_process_do_no_harm(config: DatasetConfig, cache: Cache) -> None:
    load(config, PROTOCOL, cache)
    (entry,) = entries(cache)
    unfinished = entry.with_suffix(".unfinished")
    shutil.copytree(entry, unfinished)
    (unfinished / "manifest.json").unlink()
    shutil.rmtree(entry)
    load(config, PROTOCOL, cache)
    assert entries(cache) == [entry]


CHILD = """
import sys, time
from pathlib import Path
import client_app.prepare as prepare
from client_app.cache import Cache
from client_app.data import load
from conf.tree import DatasetConfig, ProtocolConfig

plain, log = prepare.prepare, Path(sys.argv[3])
def slow(*parts):
    with log.open("a") as file:
        file.write("prepared\\n")
    time.sleep(0.5)
    return plain(*parts)
prepare.prepare = slow
print("ready", flush=True)
sys.stdin.readline()
dataset = DatasetConfig(name="file", path=sys.argv[1])
data = load(dataset, ProtocolConfig(name="strict", num_candidates=5), Cache(Path(sys.argv[2])))
print(data.fingerprint, int(data.train_items.sum()))
"""


def test_several_processes_prepare_once(file: Path, cache: Cache, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", CHILD, str(file), str(cache.root), str(log)]
    pipe = subprocess.PIPE
    children = [
        subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) for _ in range(3)
    ]
    # All are there before the first may begin, so that without the lock all would prepare.
    assert all(child.stdout and child.stdout.readline() == "ready\n" for child in children)
    for child in children:
        assert child.stdin
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = {child.communicate(timeout=120)[0] for child in children}
    assert all(child.returncode == 0 for child in children)
    assert len(outputs) == 1
    assert log.read_text().splitlines() == ["prepared"]
    assert len(entries(cache)) == 1


def test_unwritable_cache_is_one_line(config: DatasetConfig, tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("a file, not a folder")
    with pytest.raises(DataError, match=r"data cache .*occupied.* cannot be written: .*; choose"):
        load(config, PROTOCOL, Cache(tmp_path / "occupied"))


def test_cache_folder_by_setting_or_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Cache.at("").root == tmp_path / "fedrecgel"
    assert Cache.at("/elsewhere").root == Path("/elsewhere")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert Cache.at("").root == Path.home() / ".cache" / "fedrecgel"
    with pytest.raises(DataError, match="cache must be an absolute path, got 'here'"):
        Cache.at("here")


def test_wrong_hash_missing_file_and_relative_paths(
    config: DatasetConfig, cache: Cache, file: Path
) -> None:
    for change, message in [
        ({"sha256": ("0" * 64,)}, r"sha256 is [0-9a-f]{64}, dataset=file expects 0{64}; .*=\[\]"),
        ({"path": f"{file}.absent"}, r"ratings\.csv\.absent: No such file"),
        ({"path": "ratings.csv"}, r"dataset\.path must be an absolute path, got 'ratings\.csv'"),
        ({"titles": "t.item"}, r"dataset\.titles must be an absolute path"),
        ({"path": None}, r"dataset\.path is required for dataset=file"),
    ]:
        with pytest.raises(DataError, match=message):
            load(replace(config, **change), PROTOCOL, cache)  # type: ignore[arg-type]


def test_a_failed_preparation_leaves_no_entry(config: DatasetConfig, cache: Cache) -> None:
    for _ in range(2):
        with pytest.raises(DataError, match=r"lower protocol\.num_candidates=99"):
            load(config, replace(PROTOCOL, num_candidates=99), cache)
    assert not (cache.root / "prepared").exists()


def test_titles_by_item_index(config: DatasetConfig, cache: Cache, tmp_path: Path) -> None:
    titles = tmp_path / "films.item"
    titles.write_text("item_id:token\tyear:token\tmovie_title:token_seq\ni1\t1990\tOne, Two\n")
    data = load(replace(config, titles=str(titles)), PROTOCOL, cache)
    assert data.titles is not None
    assert data.titles[:3].tolist() == ["", "One, Two", ""]
    titles.write_text("item_id:token\tmovie_title:token_seq\ni1\n")
    with pytest.raises(DataError, match=r"films\.item:2: 1 fields, expected 2"):
        load(replace(config, titles=str(titles)), PROTOCOL, cache)
    titles.write_text("a\tb\n")
    with pytest.raises(DataError, match=r"films\.item:1: needs item_id and a column with title"):
        load(replace(config, titles=str(titles)), PROTOCOL, cache)


def test_load_dataset_takes_a_whole_configuration(file: Path, cache: Cache) -> None:
    overrides = ["dataset=file", f"dataset.path='{file}'", f"cache='{cache.root}'"]
    cfg = compose([*overrides, "protocol.num_candidates=5"])
    assert load_dataset(cfg) is load_dataset(cfg)
    assert load_dataset(cfg).num_users == NUM_USERS


@pytest.mark.parametrize("name", sorted(p.stem for p in ROOT.glob("conf/dataset/*.yaml")))
def test_every_dataset_yaml_composes_and_names_itself(name: str) -> None:
    path = [] if name == "synthetic" else ["dataset.path=/data/any.csv"]
    cfg = compose([f"dataset={name}", *path])
    assert cfg.dataset.name == name
    assert from_json(to_json(cfg)) == cfg


def test_shard_bounds() -> None:
    assert [shard_bounds(10, n, 4) for n in range(4)] == [(0, 2), (2, 5), (5, 7), (7, 10)]
    assert shard_bounds(1, 0, 2) == (0, 0)
    for index in (-1, 4):
        with pytest.raises(ValueError, match=r"is not in \[0, 4\)"):
            shard_bounds(10, index, 4)


def test_loading_from_the_cache_does_not_import_pandas(
    data: Dataset, file: Path, cache: Cache
) -> None:
    """Each message of a deployment starts a process: it must not pay for what it does not use."""
    code = (
        "import sys; from pathlib import Path; from client_app.cache import Cache;"
        "from client_app.data import load; from conf.tree import DatasetConfig, ProtocolConfig;"
        "load(DatasetConfig(name='file', path=sys.argv[1]),"
        " ProtocolConfig(name='strict', num_candidates=5), Cache(Path(sys.argv[2])));"
        "print('pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(file), str(cache.root)]
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "False"
