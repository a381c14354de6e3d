"""What the command line refuses before a run, and how it tells of interrupts and full disks."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_nodes import FakeNodes, tiny_config
from made_up import write_interactions

from conf.fingerprint import code_fingerprint
from server_app import callbacks, cli_launch, files
from server_app.cli import never_refuse, run_command
from server_app.errors import RoundError
from server_app.grid import LocalGrid
from server_app.run import run_server
from server_app.run_folder import RunFolder, RunState, read_state
from server_app.start import recorded

SMALL = ["dataset=file", "dataset.path=ratings.csv", "federation.grid=local", "strategy=fedncf"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a data file; a run that would start fails the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDRECGEL_RUNS", raising=False)
    monkeypatch.setattr(cli_launch, "launch", lambda *given: pytest.fail("started"))
    write_interactions(tmp_path / "ratings.csv")
    return tmp_path


@pytest.fixture
def x(here: Path) -> Path:
    """An earlier run of the name x."""
    from server_app.cli_run import plan

    (planned,) = plan(SMALL, "x")
    with RunFolder.opened(planned.config) as folder:
        return folder.path


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = run_command(list(arguments))
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    return status, error


def test_a_gpu_that_is_not_there_is_status_2(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    status, error = failure(capsys, "run", *SMALL, "engine.device=cuda", "--name", "g")
    assert status == 2
    assert error.startswith("fedrecgel: engine.device=cuda, but torch finds no GPU")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("federation.rounds=1", "cannot resume with fewer rounds"),
        ("seed=5", "cannot resume with another seed: the run has 0, asked for 5"),
        ("strategy=fedavg", "strategy=fedavg: a resumed run keeps its strategy (fedncf); "),
        ("model=mf", "model=mf: a resumed run keeps its model (neumf); "),
        ("engine=loop", "engine=loop: a resumed run keeps its engine (cohort); "),
        ("evaluation=paper", "evaluation=paper: a resumed run keeps its evaluation; "),
    ],
)
def test_a_resume_with_other_settings_is_status_2(
    x: Path, capsys: pytest.CaptureFixture[str], given: str, said: str
) -> None:
    status, error = failure(capsys, "run", "--resume", "x", given)
    assert status == 2
    assert error.startswith(f"fedrecgel: {said}")


def test_the_groups_of_the_run_may_be_repeated(x: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from server_app.cli_run import plan

    (planned,) = plan([*SMALL, "model=neumf", "federation.rounds=300"], resume="x")
    assert planned.config.federation.rounds == 300


def test_an_output_that_cannot_be_is_named_with_its_setting(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, error = failure(capsys, "run", *SMALL, "output=ratings.csv/runs")
    assert status == 2
    root = f"{here}/ratings.csv/runs"
    assert error.startswith(f"fedrecgel: {root}/file-fedncf-s0-")
    assert error.endswith(f": Not a directory (set by output={root})")


def test_a_full_disk_during_a_run_is_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = here / "runs" / "x" / "state.json"

    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(cli_launch, "launch", full)
    status, error = failure(capsys, "run", *SMALL, "--name", "x")
    assert status == 1
    assert error == (f"fedrecgel: {path}: No space left on device (set by output={here / 'runs'})")


def test_a_write_that_fails_names_the_file_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    files.replace_json(path, {"a": 1})
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*\.state\.json\.tmp'"):
        files.replace_json(path, {"a": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]
    assert path.read_bytes() == before


def test_the_first_error_survives_a_disk_that_refuses_to_record_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = tiny_config(tmp_path, "name=run")

    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        RunFolder.opened(cfg) as folder,
        pytest.raises(RoundError, match="round 3"),
        recorded(folder, cfg, []),
    ):
        monkeypatch.setattr(RunFolder, "write_state", full)
        raise RoundError("round 3")


def test_a_run_in_process_that_is_interrupted_is_not_failed(tmp_path: Path) -> None:
    class Interrupt(callbacks.Callback):
        ended: BaseException | None = None

        def on_round(self, record: callbacks.RoundRecord) -> None:
            raise KeyboardInterrupt

        def on_failure(self, error: BaseException) -> None:
            self.ended = error

    nodes, follower = FakeNodes(code_fingerprint()), Interrupt()
    with pytest.raises(KeyboardInterrupt):
        run_server(LocalGrid(2, nodes.app()), tiny_config(tmp_path, "name=run"), [follower])
    state = read_state(tmp_path / "run")
    assert state == RunState("interrupted", state.run_id, 0)
    assert isinstance(follower.ended, KeyboardInterrupt)


INTERRUPTED_IMPORT = f"""
import os, signal, sys
from server_app.cli import main

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), {int(signal.SIGINT)})

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
sys.argv = ["fedrecgel", "runs"]
main()
"""


def test_ctrl_c_during_the_first_imports_is_status_130_without_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "fedrecgel: stopped\n")


def test_an_encoding_without_the_character_is_no_error() -> None:
    """What an argument or a title holds is printed by an ASCII terminal with question marks."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    never_refuse(stream)
    stream.write("Mean ± deviation\n")
    stream.flush()
    assert raw.getvalue() == b"Mean ? deviation\n"
