"""Training made again for the audit uploads what the run's nodes did upload, to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import NUM_USERS, small_config

from experiments.audit.sources import Source, opened, recorded, replayed
from server_app.cli_finished import FinishedRun
from server_app.grid import LocalGrid
from server_app.run import run_server

WHOLE = ("federation.fraction=1.0", "protocol.select=last", "evaluation.every=1")


def runs(folder: Path, nodes: int, *words: str) -> tuple[FinishedRun, FinishedRun]:
    """The same run to its first round, and to its second with that one's uploads kept."""
    made = []
    for rounds, name in ((1, "short"), (2, "long")):
        cfg = small_config(
            folder, *WHOLE, f"name={name}", f"federation.rounds={rounds}",
            f"federation.num_nodes={nodes}", "evaluation.record_uplinks=[2]", *words,
        )  # fmt: skip
        made.append(opened(run_server(LocalGrid(nodes), cfg).folder))
    return made[0], made[1]


def same(seen: Source, again: Source) -> None:
    assert seen.users_U.tolist() == again.users_U.tolist()
    one, two = seen.upload, again.upload
    assert (one.num_users, one.round) == (two.num_users, two.round)
    assert one.tensors.keys() == two.tensors.keys()
    for name in one.tensors:
        assert torch.equal(one.tensors[name].to_dense(), two.tensors[name].to_dense()), name
    for name in one.shared_before:
        assert torch.equal(one.shared_before[name], two.shared_before[name]), name
    assert one.row_weights.keys() == two.row_weights.keys()
    for name in one.row_weights:
        assert torch.equal(one.row_weights[name], two.row_weights[name]), name


@pytest.mark.parametrize(
    ("strategy", "nodes"),
    [("fedrecgel", 2), ("fedrecgel", NUM_USERS), ("fedavg", 2), ("fcf", 2), ("pfedrec", 2)],
)
def test_a_replay_is_the_upload(tmp_path: Path, strategy: str, nodes: int) -> None:
    short, long = runs(tmp_path, nodes, f"strategy={strategy}")
    found = list(recorded(long, NUM_USERS))
    assert len(found) == nodes
    for source in found:
        same(source, replayed(short, source.users_U))


@pytest.mark.parametrize("strategy", ["fedials", "fedspectral", "fedease"])
def test_what_sums_lack_is_uploaded_as_for_the_first_time(tmp_path: Path, strategy: str) -> None:
    """So the replay from the parameters of before is the first round's upload."""
    cfg = small_config(
        tmp_path, *WHOLE, f"strategy={strategy}", "federation.rounds=1",
        "evaluation.record_uplinks=[1]",
    )  # fmt: skip
    run = opened(run_server(LocalGrid(2), cfg).folder)
    (seen, other) = recorded(run, 2)
    checkpoint = replace(run.checkpoint, best=seen.upload.shared_before)
    before = replace(run, round=0, checkpoint=checkpoint)
    same(seen, replayed(before, seen.users_U))
    same(other, replayed(before, other.users_U))


def test_the_first_round_of_single_tables_is_recorded_user_by_user(tmp_path: Path) -> None:
    cfg = small_config(
        tmp_path, *WHOLE, "strategy=gpfedrec", "federation.rounds=1",
        "evaluation.record_uplinks=[1]",
    )  # fmt: skip
    run = opened(run_server(LocalGrid(2), cfg).folder)
    found = list(recorded(run, NUM_USERS))
    users = np.concatenate([source.users_U for source in found])
    assert sorted(users.tolist()) == list(range(NUM_USERS))
    assert {source.upload.num_users for source in found} == {1}


def test_another_seed_is_another_upload(tmp_path: Path) -> None:
    """So that equality above says something."""
    short, long = runs(tmp_path, 2)
    (seen, _) = recorded(long, 2)
    other = replace(short, config=replace(short.config, seed=1))
    again = replayed(other, seen.users_U)
    assert not all(
        torch.equal(t.to_dense(), again.upload.tensors[n].to_dense())
        for n, t in seen.upload.tensors.items()
    )
