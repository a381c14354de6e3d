"""``user_ranks.npz`` says what ``result.json`` says, whatever the nodes, breaks and settings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from made_up import NUM_USERS, final_tensors, small_config
from test_resume import StopAfter

from models.types import UserRanks
from server_app.checkpoint import load_checkpoint
from server_app.cli_reference_rows import reference_rows
from server_app.errors import CheckpointError, RunFolderError
from server_app.grid import LocalGrid
from server_app.results import RunResult
from server_app.run import run_server
from server_app.user_ranks import load_user_ranks, metrics_of

ON = "evaluation.user_ranks=true"
MALICIOUS = 2  # of 24 users, a share of 0.1
TOLERANCE = NUM_USERS * 2.0**-52
"""Relative: sums of the same 24 numbers, none of them negative, in another order, and divided."""


def run(folder: Path, *overrides: str, nodes: int = 2, stop: int | None = None) -> RunResult:
    folder.mkdir(exist_ok=True)
    cfg = small_config(folder, "name=run", f"federation.num_nodes={nodes}", *overrides)
    return run_server(LocalGrid(nodes), cfg, [] if stop is None else [StopAfter(stop)])


def ranks_of(result: RunResult) -> dict[str, UserRanks]:
    found = load_user_ranks(result.folder)
    assert found is not None
    return found


def file_of(result: RunResult) -> bytes:
    return (result.folder / "user_ranks.npz").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return run(tmp_path_factory.mktemp("whole"), ON)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("evaluation.full=selected",),
        ("evaluation.full=never",),
        ("protocol=paper", "protocol.num_candidates=20"),
        ("evaluation.users=5",),
        ("protocol.select=last", "strategy=pfedrec", "federation.fraction=1.0"),
        ("attack=gaussian", "attack.fraction=0.1"),
    ],
    ids=" ".join,
)
def test_ranks_give_the_metrics_of_the_result(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    result = run(tmp_path, ON, *overrides)
    found, cutoffs = ranks_of(result), small_config(tmp_path).evaluation.cutoffs
    assert result.popularity is not None
    for who, told in (("model", result.metrics), ("popularity", result.popularity)):
        means = metrics_of(found[who], cutoffs)
        others = {name for name in told if name.startswith(("catalogue/", "attack/"))}
        assert means.keys() == told.keys() - others
        assert means == pytest.approx({name: told[name] for name in means}, rel=TOLERANCE)
    attacked = "attack=gaussian" in overrides  # malicious users are not ranked
    users = 5 if "evaluation.users=5" in overrides else NUM_USERS - attacked * MALICIOUS
    assert len(found["model"]) == len(found["popularity"]) == users


def test_without_the_switch_a_run_leaves_the_same_and_no_ranks(
    tmp_path: Path, whole: RunResult
) -> None:
    plain = run(tmp_path)
    assert load_user_ranks(plain.folder) is None
    assert not list(plain.folder.rglob("*.npz"))
    assert plain.metrics == whole.metrics
    assert final_tensors(plain.folder) == final_tensors(whole.folder)
    state = json.loads((sorted(plain.folder.glob("checkpoint/*"))[-1] / "state.json").read_text())
    assert state["sha256"].keys() == {"tensors.safetensors", "best.safetensors"}


def test_popularity_is_ranked_alike_on_any_number_of_nodes(
    tmp_path: Path, whole: RunResult
) -> None:
    """Its scores are whole numbers, so there is nothing to round: equal to the last rank."""
    for nodes in (1, NUM_USERS):
        found = ranks_of(run(tmp_path / str(nodes), ON, nodes=nodes))["popularity"]
        for kind, ranks_U in ranks_of(whole)["popularity"].ranks.items():
            assert np.array_equal(found.ranks[kind], ranks_U)


def test_one_node_ranks_as_many(tmp_path: Path) -> None:
    """Of a model after one round: scores differ in the last bits, and no two tie that closely."""
    settings = (ON, "federation.rounds=1", "engine.block_users=1", "engine.evaluation_block=1")
    found = [ranks_of(run(tmp_path / str(n), *settings, nodes=n))["model"] for n in (1, 5)]
    assert np.array_equal(found[0].users_U, np.arange(NUM_USERS))
    for kind, ranks_U in found[0].ranks.items():
        assert np.array_equal(found[1].ranks[kind], ranks_U), kind


@pytest.mark.parametrize("full", ["each", "selected"])
@pytest.mark.parametrize("stop", [1, 4, 5])
def test_a_resumed_run_writes_the_same_bytes(tmp_path: Path, stop: int, full: str) -> None:
    settings = (ON, f"evaluation.full={full}")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", *settings, stop=stop)
    resumed = run(tmp_path / "broken", *settings, "resume=true")
    assert file_of(resumed) == file_of(run(tmp_path / "unbroken", *settings))


def test_a_checkpoint_keeps_the_ranks_of_the_selected_round(whole: RunResult) -> None:
    kept = load_checkpoint(whole.folder)
    assert kept.selection.round == whole.selected_round and kept.best_ranks is not None
    for kind, ranks_U in ranks_of(whole)["model"].ranks.items():
        assert np.array_equal(kept.best_ranks.ranks[kind], ranks_U)


def test_a_damaged_file_of_ranks_is_a_damaged_checkpoint(tmp_path: Path) -> None:
    result = run(tmp_path, ON)
    for folder in result.folder.glob("checkpoint/*"):
        data = bytearray((folder / "ranks.npz").read_bytes())
        data[len(data) // 2] ^= 1
        (folder / "ranks.npz").write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"ranks\.npz is damaged: its hash does not match"):
        load_checkpoint(result.folder)


def test_a_resume_cannot_change_its_mind(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stop=4)
    with pytest.raises(RunFolderError, match=r"another evaluation\.user_ranks"):
        run(tmp_path, ON, "resume=true")


def test_references_hand_out_ranks_of_the_same_users(tmp_path: Path) -> None:
    """Popularity's are those of a federated run to the last rank; the rows stay as they were."""
    settings = ("evaluation.users=7", "federation.num_nodes=3")
    federated = ranks_of(run(tmp_path, ON, *settings, nodes=3))["popularity"]
    handed: dict[str, UserRanks] = {}
    cfg = small_config(tmp_path, *settings)
    rows = reference_rows(cfg, ["popularity", "ease"], on_ranks=handed.__setitem__)
    assert rows[0].as_json().keys() == reference_rows(cfg, ["popularity"])[0].as_json().keys()
    assert np.array_equal(handed["popularity"].users_U, federated.users_U)
    for kind, ranks_U in federated.ranks.items():
        assert np.array_equal(handed["popularity"].ranks[kind], ranks_U)
    for row in rows:
        means = metrics_of(handed[row.method], cfg.evaluation.cutoffs)
        assert means == pytest.approx({name: row.metrics[name] for name in means}, rel=TOLERANCE)
    assert "ranks" not in rows[0].as_json()
