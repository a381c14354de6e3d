"""A resumed run ends with the same bytes as one that was never interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from made_up import best_tensors, final_tensors, small_config

from server_app.callbacks import Callback, RoundRecord, RunInfo, read_metrics
from server_app.errors import CheckpointError
from server_app.grid import LocalGrid
from server_app.results import RunResult
from server_app.run import run_server
from server_app.run_folder import read_state

ROOT = Path(__file__).resolve().parents[2]


class StopAfter(Callback):
    """Ends the process's run after a round's line was written, before its checkpoint."""

    def __init__(self, server_round: int) -> None:
        self._round = server_round

    def on_round(self, record: RoundRecord) -> None:
        if record.round == self._round:
            raise KeyboardInterrupt


def run(folder: Path, *overrides: str, stop: int | None = None) -> RunResult:
    cfg = small_config(folder, "name=run", *overrides)
    callbacks = [] if stop is None else [StopAfter(stop)]
    return run_server(LocalGrid(cfg.federation.num_nodes), cfg, callbacks)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return run(tmp_path_factory.mktemp("whole"))


def equal(resumed: RunResult, whole: RunResult) -> None:
    assert final_tensors(resumed.folder) == final_tensors(whole.folder)
    assert best_tensors(resumed.folder) == best_tensors(whole.folder)
    assert resumed.metrics == whole.metrics
    assert resumed.selected_round == whole.selected_round
    trained = [(r["round"], r["num_users"], r["train"]) for r in read_metrics(resumed.folder)]
    assert trained == [(r["round"], r["num_users"], r["train"]) for r in read_metrics(whole.folder)]


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_resumed_after_any_round(tmp_path: Path, whole: RunResult, stop: int) -> None:
    """Checkpoints exist for 0, 2, 3 and 4; the round that was stopped in is trained again."""
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stop=stop)
    assert read_state(tmp_path / "runs" / "run").status == "interrupted"
    equal(run(tmp_path, "resume=true"), whole)


def test_stopped_twice_between_the_same_checkpoints(tmp_path: Path, whole: RunResult) -> None:
    for overrides in ((), ("resume=true",), ("resume=true",)):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, *overrides, stop=5)
    equal(run(tmp_path, "resume=true"), whole)
    assert read_state(tmp_path / "runs" / "run").incarnation == 3


def test_a_run_continued_by_more_rounds(tmp_path: Path, whole: RunResult) -> None:
    """Three rounds, then three more: as six, since round 3 is evaluated in both."""
    run(tmp_path, "federation.rounds=3")
    equal(run(tmp_path, "resume=true", "federation.rounds=6"), whole)


def test_resume_without_a_nodes_private_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stop=3)
    (lost, *_) = sorted((tmp_path / "runs" / "run" / "nodes").glob("*.sqlite"))
    for file in lost.parent.glob(f"{lost.name}*"):
        file.unlink()
    for _ in range(2):  # refused again the next time
        with pytest.raises(CheckpointError, match=f"{lost.stem} lost the private state"):
            run(tmp_path, "resume=true")


def test_a_damaged_checkpoint_costs_rounds_but_no_bytes(tmp_path: Path, whole: RunResult) -> None:
    """Stopped after round 5, checkpoints 3 and 4 exist; 4 is damaged, so 3 is continued: the
    nodes still have the private state of round 3."""
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stop=5)
    checkpoints = tmp_path / "runs" / "run" / "checkpoint"
    newest = sorted(checkpoints.iterdir())[-1]
    assert newest.name == "round-000000004"
    (newest / "tensors.safetensors").write_bytes(b"nothing")
    equal(run(tmp_path, "resume=true"), whole)


def test_stopped_before_the_first_checkpoint(tmp_path: Path, whole: RunResult) -> None:
    """Nothing was trained, so resuming starts the same run from the beginning."""

    class StopAtStart(Callback):
        def on_start(self, info: RunInfo) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_server(LocalGrid(2), small_config(tmp_path, "name=run"), [StopAtStart()])
    equal(run(tmp_path, "resume=true"), whole)


def test_other_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stop=5)
    data = tmp_path / "made_up.csv"
    lines = data.read_text().splitlines()
    data.write_text("\n".join([*lines[1:], lines[0].replace(",4,", ",4,9")]) + "\n")
    with pytest.raises(CheckpointError, match="do not host the shards"):
        run(tmp_path, "resume=true")


@pytest.mark.parametrize(("when", "server_round"), [("round", 5), ("saving", 4)])
def test_killed_by_the_system(
    tmp_path: Path, whole: RunResult, when: str, server_round: int
) -> None:
    """A real process, killed by SIGKILL between two checkpoints or while writing one."""
    died = _server(tmp_path, when, str(server_round))
    assert died == -signal.SIGKILL
    folder = tmp_path / "runs" / "run"
    assert read_state(folder).status == "interrupted"
    assert not (folder / "result.json").exists()
    equal(run(tmp_path, "resume=true"), whole)


def _server(folder: Path, *arguments: str) -> int:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command = [sys.executable, str(Path(__file__).with_name("resume_worker.py"))]
    done = subprocess.run(
        [*command, str(folder), *arguments],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 1, done.stderr
    return done.returncode
