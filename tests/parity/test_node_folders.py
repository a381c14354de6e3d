"""Nodes with data folders of their own train and rank exactly what a simulation's nodes do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_run

from client_app.data import Dataset, load_dataset
from client_app.distribute import distribute, even_sizes
from client_app.errors import DataError
from client_app.node_config import NodeError
from client_app.runtime import open_node
from client_app.shard import load_new_users, load_shard
from conf.compose import compose
from conf.tree import Config
from models.types import IntArray

UNTIMED = ["dataset.time=random"]


def folders(cfg: Config, target: Path, sizes: list[int]) -> list[Path]:
    return [written.folder for written in distribute(cfg, target, sizes)]


def assert_same_users(whole: Dataset, part: Dataset, users: IntArray) -> None:
    assert part.hosted is not None
    np.testing.assert_array_equal(part.hosted, users)
    np.testing.assert_array_equal(part.item_ids, whole.item_ids)
    np.testing.assert_array_equal(part.user_ids, whole.user_ids[users])
    assert part.catalogue == whole.catalogue
    assert part.num_users == whole.num_users
    np.testing.assert_array_equal(part.heldout(users), whole.heldout(users))
    for user in users.tolist():
        np.testing.assert_array_equal(part.train_of(user), whole.train_of(user))
    for split in ("test", "validation"):
        np.testing.assert_array_equal(part.candidates(split, users), whole.candidates(split, users))


@pytest.mark.parametrize(
    "settings",
    [
        [],
        UNTIMED,
        ["dataset.time=file_order"],
        ["protocol=paper", "protocol.num_candidates=10"],
        ["protocol=paper", "protocol.num_candidates=10", "protocol.candidates=derived"],
    ],
    ids=str,
)
@pytest.mark.parametrize("sizes", [[7, 7, 6], [1, 18, 1]], ids=str)
def test_a_folder_gives_its_users_the_split_of_the_whole(
    tmp_path: Path, settings: list[str], sizes: list[int]
) -> None:
    cfg = tiny_run.config(tmp_path, *settings)
    whole, start = load_dataset(cfg), 0
    for folder, size in zip(folders(cfg, tmp_path / "nodes", sizes), sizes, strict=True):
        users = np.arange(start, start + size)
        assert_same_users(whole, load_shard(folder, cfg), users)
        start += size


def test_made_up_data(tmp_path: Path) -> None:
    cfg = compose(
        [
            "dataset=synthetic",
            "dataset.synthetic.users=50",
            "dataset.synthetic.items=400",
            f"cache={tmp_path / 'cache'}",
        ]
    )
    whole = load_dataset(cfg)
    first, second = folders(cfg, tmp_path / "nodes", even_sizes(50, 2))
    assert_same_users(whole, load_shard(first, cfg), np.arange(25))
    assert_same_users(whole, load_shard(second, cfg), np.arange(25, 50))


def test_titles_travel_and_raw_ids_of_others_do_not(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path)
    (tmp_path / "x.item").write_text("item_id:token\ttitle:token_seq\n3\tThe\n")
    cfg = tiny_run.config(tmp_path, f"dataset.titles={tmp_path / 'x.item'}")
    first, second = folders(cfg, tmp_path / "nodes", [10, 10])
    assert load_shard(first, cfg).titles is not None
    assert (first / "catalogue.tsv").read_bytes() == (second / "catalogue.tsv").read_bytes()
    users = {line.split("\t")[1] for line in (first / "users.tsv").read_text().splitlines()}
    rows = (first / "interactions.inter").read_text().splitlines()[1:]
    assert {row.split("\t")[0] for row in rows} == users == {str(user) for user in range(10)}


def test_rows_of_unknown_items_are_counted_or_refused(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path)
    (folder,) = folders(cfg, tmp_path / "nodes", [20])
    before = load_shard(folder, cfg)
    with (folder / "interactions.inter").open("a") as file:
        file.write("0\tnovel\t999\n1\tnovel\t999\n1\tother\t5\n")
    after = load_shard(folder, cfg)
    assert after.counts["unknown_items"] == 3
    assert before.counts["unknown_items"] == 0
    assert_same_users(before, after, np.arange(20))
    refusing = tiny_run.config(tmp_path, "dataset.unknown_items=error")
    with pytest.raises(DataError, match=r"3 rows are of 2 items not in the catalogue \('novel', "):
        load_shard(folder, refusing)


def test_new_rows_count_and_unlisted_users_wait(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path)
    (folder,) = folders(cfg, tmp_path / "nodes", [20])
    before = load_shard(folder, cfg)
    with (folder / "interactions.inter").open("a") as file:
        file.write("0\t39\t999999\nnewcomer\t7\t2\nnewcomer\t5\t3\nnewcomer\t9\t1\n")
    after = load_shard(folder, cfg)
    assert after.item_ids[after.heldout(np.array([0]))[0, 0]] == "39"
    assert after.fingerprint != before.fingerprint
    assert after.counts["unlisted_users"] == 1
    (items,) = load_new_users(folder, cfg).values()
    assert after.item_ids[items].tolist() == ["9", "7", "5"]


def test_a_listed_user_without_rows_is_not_hosted(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path)
    (folder,) = folders(cfg, tmp_path / "nodes", [20])
    path = folder / "interactions.inter"
    kept = [line for line in path.read_text().splitlines() if not line.startswith("4\t")]
    path.write_text("\n".join(kept) + "\n")
    found = load_shard(folder, cfg)
    assert found.hosted is not None
    assert found.hosted.tolist() == [u for u in range(20) if u != 4]
    assert found.counts["users_without_rows"] == 1
    with pytest.raises(DataError, match="user 4 is not on this node"):
        found.train_of(4)


def test_another_run_than_the_folder_is_for(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path)
    (folder,) = folders(cfg, tmp_path / "nodes", [20])
    for setting, words in (
        ("dataset.name=films", "prepared with dataset=file, the run asks for dataset=films"),
        ("protocol.min_interactions=3", "protocol.min_interactions=5"),
        ("protocol.candidates=notebook", "candidates.npy is missing"),
    ):
        with pytest.raises(DataError, match=words):
            load_shard(folder, tiny_run.config(tmp_path, setting))
    (folder / "catalogue.tsv").write_text("1\t\n2\t\n")
    with pytest.raises(DataError, match=r"not the catalogue that shard.json names"):
        load_shard(folder, cfg)
    (folder / "shard.json").write_text(json.dumps({"shard_key": 3}))
    with pytest.raises(DataError, match="not a node's description"):
        load_shard(folder, cfg)


def test_folders_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path)
    with pytest.raises(DataError, match="add up to 19, but the data has 20 users"):
        distribute(cfg, tmp_path / "nodes", [10, 9])
    assert not (tmp_path / "nodes").exists()
    distribute(cfg, tmp_path / "nodes", [20])
    with pytest.raises(DataError, match="exists already"):
        distribute(cfg, tmp_path / "nodes", [20])


def test_a_node_opens_its_folder_and_keeps_its_store_there(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path)
    _, folder = folders(cfg, tmp_path / "nodes", [19, 1])
    # The server's paths mean nothing on the node's machine.
    elsewhere = tiny_run.config(tmp_path, "dataset.path=/nowhere/x.csv", "output=/nowhere")
    node = open_node({"data-path": str(folder)}, tiny_run.header(elsewhere))
    assert node.shard_key == "000001-of-000002"
    assert node.users.tolist() == [19]
    assert node.folder == folder
    assert node.state.store.path == folder / "store.sqlite"
    # What people did, and what was learnt of them, is the node's alone.
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.glob("store.sqlite*"))
    with pytest.raises(NodeError, match="neither a data file nor a node's folder"):
        open_node({"data-path": str(tmp_path)}, tiny_run.header(cfg))
