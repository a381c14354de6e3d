"""``fedrecgel sweep``: made once, kept, continued; what fails, and what is wrong beforehand."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from made_up import SMALL_RUN, best_tensors, final_tensors, write_interactions

from conf.tree import from_mapping
from experiments.sweep import making
from experiments.sweep.jobs import data_digest
from experiments.sweep.pool import Ended, Event, Progressed
from experiments.sweep.tasks import Failure, Task
from server_app import cli_common
from server_app.callbacks import METRICS
from server_app.cli import run_command
from server_app.lock import is_locked, locked
from server_app.results import RESULT, load_result
from server_app.run_folder import read_config, read_state
from server_app.user_ranks import load_ranks, load_user_ranks

NARROW = SMALL_RUN
ROOT = Path(__file__).resolve().parents[2]


def in_this_process(tasks: Sequence[Task], processes: int, log: Path) -> Iterator[Event]:
    """As the pool does, without its processes."""
    for task in tasks:
        yield Progressed(task, 0)
        failure = None
        try:
            task.make(lambda rounds: None)
        except Exception as error:  # noqa: BLE001
            failure = Failure.of(error, "")
        yield Ended(task, failure)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDRECGEL_RUNS", raising=False)
    monkeypatch.setattr(cli_common.CONSOLE, "_width", 200)
    monkeypatch.setattr(making, "work", in_this_process)
    write_interactions(tmp_path / "ratings.csv")
    return tmp_path


def sweep(*words: str, name: str = "s", references: str = "none") -> int:
    return run_command(["sweep", *words, "--name", name, "--references", references])


def results(folder: Path) -> dict[str, int]:
    """Time of writing of each run's result, in nanoseconds."""
    return {p.parent.name: p.stat().st_mtime_ns for p in folder.glob(f"*/{RESULT}")}


def test_every_combination_is_a_run_and_is_made_once(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["strategy=fedncf,fedmf", "seeds=0,1", *NARROW]
    assert sweep(*words) == 0
    folder = here / "runs" / "s"
    first = results(folder)
    assert sorted(first) == ["fedmf-s0", "fedmf-s1", "fedncf-s0", "fedncf-s1"]
    config = from_mapping(read_config(folder / "fedmf-s1"))
    assert (config.strategy_name, config.seed) == ("fedmf", 1)
    asked = json.loads((folder / "sweep.json").read_text())
    assert asked["jobs"][0]["label"] == "fedncf-s0"
    assert asked["jobs"][0]["arm"] == "fedncf"
    shown = capsys.readouterr().out
    assert "[4/4] fedmf-s1: done" in shown
    assert f"Results: {folder}" in shown

    assert sweep(*words) == 0
    assert "4 of 4 jobs are complete already" in capsys.readouterr().out
    assert run_command(["sweep", "--resume", "s"]) == 0
    assert results(folder) == first
    # A seed more: what there was has the same label and stays.
    assert sweep("strategy=fedncf,fedmf", "seeds=0,1,2", *NARROW) == 0
    assert {k: v for k, v in results(folder).items() if k in first} == first
    assert len(results(folder)) == 6


def test_a_run_of_a_sweep_is_the_run_of_its_settings(here: Path) -> None:
    assert sweep("strategy=fedncf", "seed=3", *NARROW) == 0
    words = ["strategy=fedncf", "seed=3", "federation.grid=local", *NARROW]
    assert run_command(["run", *words, "--name", "alone"]) == 0
    job = here / "runs" / "s" / "fedncf-s3"
    assert load_result(job).metrics == load_result(here / "runs" / "alone").metrics
    assert final_tensors(job) == final_tensors(here / "runs" / "alone")


def test_other_settings_or_other_data_are_made_again(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep("seeds=0,1", *NARROW) == 0
    folder = here / "runs" / "s"
    first = results(folder)
    assert sweep("seeds=0,1", *NARROW, "cache=elsewhere") == 0
    assert results(folder) == first  # where things are is no part of a result
    assert sweep("seeds=0,1", *NARROW, "federation.rounds=4") == 0
    second = results(folder)
    assert all(second[label] > first[label] for label in first)
    assert load_result(folder / "s0").rounds == 4

    with (here / "ratings.csv").open("a") as file:
        file.write("1,40,4,99\n")
    data_digest.cache_clear()  # another process
    assert sweep("seeds=0,1", *NARROW, "federation.rounds=4") == 0
    third = results(folder)
    assert all(third[label] > second[label] for label in second)
    capsys.readouterr()
    assert sweep("seeds=1,2", *NARROW, "federation.rounds=4") == 0
    assert "also holds 1 runs that this sweep does not ask for (s0)" in capsys.readouterr().out
    assert (folder / "s0").is_dir()


def test_a_failed_job_sinks_no_other_and_is_tried_again_when_asked(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["strategy=fedncf", "strategy.private_lr=0.1,1e30", *NARROW]
    assert sweep(*words) == 1
    out, err = capsys.readouterr()
    assert err.strip() == "fedrecgel: 1 of 2 jobs failed"
    assert "failed: private_lr_1e_30: round" in out
    folder = here / "runs" / "s"
    assert list(results(folder)) == ["private_lr_0.1"]
    (note,) = folder.glob("*.failed.json")
    assert note.name == "private_lr_1e_30.failed.json"
    before = note.stat().st_mtime_ns
    assert json.loads(note.read_text())["deterministic"]

    assert sweep(*words) == 1  # it would fail again
    assert note.stat().st_mtime_ns == before
    assert "(--retry-failed)" in capsys.readouterr().out
    assert sweep(*words, "--retry-failed") == 1
    assert note.stat().st_mtime_ns > before
    # With other settings it is another job, which is tried without being asked for.
    tried = note.stat().st_mtime_ns
    assert sweep(*words, "federation.rounds=4") == 1
    assert note.stat().st_mtime_ns > tried


def test_what_failed_for_a_passing_reason_is_tried_again(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(
            "server_app.run.run_server", lambda *_: (_ for _ in ()).throw(OSError("disk full"))
        )
        assert sweep("seed=0,1", *NARROW) == 1
    folder = here / "runs" / "s"
    note = json.loads((folder / "s0.failed.json").read_text())
    assert (note["error"], note["deterministic"]) == ("OSError: disk full", False)
    assert sweep("seed=0,1", *NARROW) == 0
    assert not list(folder.glob("*.failed.json"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["strategy=fedncf,nix"], "strategy=nix does not exist; choose one of "),
        (["federation.fractoin=0.1,0.2"], "unknown key federation.fractoin; did you mean"),
        (["seed=0,1", "seed=2"], "seed is given twice in one sweep"),
        (["seed=0,1", "name=x"], "--name names the sweep"),
        (["seed=0,1", "federation=deployment"], "a sweep runs on the in-process grid"),
        (["dataset.path=nix.csv"], "dataset.path: there is no file "),
        (["nix"], "there is no sweep 'nix': give overrides"),
        (["seed=0", "--references", "ease,nix"], "there is no reference 'nix'"),
        (["seed=0", "--resume", "x"], "--resume names one sweep"),
        (["--resume", "nix"], "there is no sweep in "),
        ([], "say what to sweep over"),
        (["seed=0", "--name", "a/b"], "--name must be letters"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_starts(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    more = NARROW if words and "path" not in words[0] and "=" in words[0] else []
    more = [] if "--resume" in words else more
    assert run_command(["sweep", *words, *more]) == 2
    error = capsys.readouterr().err.strip()
    assert expected in error
    assert "\n" not in error
    assert not (here / "runs").exists()


def test_a_folder_of_something_else_is_left_alone(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "runs" / "s").mkdir(parents=True)
    (here / "runs" / "s" / "mine.txt").write_text("")
    assert sweep("seed=0", *NARROW) == 2
    assert "holds something else than a sweep" in capsys.readouterr().err


def test_references_of_each_split_are_kept(here: Path) -> None:
    words = ["strategy=fedncf", "protocol=strict,paper", "seeds=0,1", *NARROW]
    assert sweep(*words, references="popularity,item_knn") == 0
    folder = here / "runs" / "s" / "references"
    names = [f"file-{p}-s{s}.json" for p in ("paper", "strict") for s in (0, 1)]
    assert sorted(path.name for path in folder.glob("*.json")) == names
    found = json.loads((folder / "file-strict-s1.json").read_text())
    assert [row["method"] for row in found["rows"]] == ["popularity", "item_knn"]
    run = load_result(here / "runs" / "s" / "strict-s1")
    assert run.popularity is not None
    row = found["rows"][0]
    assert {k: v for k, v in run.popularity.items() if k in row["metrics"]} == {
        k: v for k, v in row["metrics"].items() if k in run.popularity
    }
    ranks = load_ranks(folder / "file-strict-s1.popularity.ranks.npz")
    beside = load_user_ranks(here / "runs" / "s" / "strict-s1")
    assert beside is not None  # a sweep asks for them by default
    for name, ranks_U in beside["popularity"].ranks.items():
        assert (ranks_U == ranks.ranks[name]).all()
    settings = json.loads((folder / "settings" / "file.json").read_text())["settings"]
    assert found["rows"][1]["settings"] == settings["item_knn"]

    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*.*")}
    assert len(times) == 4 + 4 * 2 + 1  # rows and ranks of the splits, settings
    assert sweep(*words, references="popularity,item_knn") == 0
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.*")} == times


def test_without_the_library_a_reference_is_our_own(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "implicit" else found(name)
    )
    assert sweep("strategy=fedmf", "seed=0", *NARROW, references="ials") == 0
    (row,) = json.loads((here / "runs/s/references/file-strict-s0.json").read_text())["rows"]
    assert (row["implementation"], row["settings"]["implementation"]) == ("own (torch)", "own")
    settings = json.loads((here / "runs/s/references/settings/file.json").read_text())
    assert len(settings["made_of"]["grids"]["ials"]) > 1 and not settings["left_out"]


ROUNDS = 60


def start(here: Path) -> subprocess.Popen[str]:
    """The command in a process group of its own, as a terminal has it."""
    code = "from server_app.cli import main; main()"
    words = ["sweep", *LONG, "--name", "s", "--references", "none", "--jobs", "1"]
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell starts what runs in its background deaf to Ctrl-C, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


LONG = [
    "strategy=fedrecgel",
    "seed=0",
    *NARROW,
    f"federation.rounds={ROUNDS}",
    "federation.checkpoint_every=1",
]


def test_killed_then_stopped_then_the_bytes_of_an_unbroken_run(here: Path) -> None:
    job = here / "runs" / "s" / "fedrecgel-s0"
    killed = start(here)
    wait_for_rounds(job, 5, killed)
    killed.kill()
    killed.wait()
    wait_until_free(job)
    assert read_state(job).status == "interrupted"

    stopped = start(here)
    wait_for_rounds(job, 10, stopped)
    os.killpg(stopped.pid, signal.SIGINT)
    _, error = stopped.communicate(timeout=120)
    assert stopped.returncode == 130, (rounds_of(job), error)
    assert error == "fedrecgel: stopped; continue with: fedrecgel sweep --resume s\n"
    wait_until_free(job)
    reached = rounds_of(job)
    assert 10 <= reached < ROUNDS

    assert run_command(["sweep", "--resume", "s"]) == 0
    assert read_state(job).incarnation == 2  # the third start of one and the same run
    words = [*LONG, "federation.grid=local", "--name", "unbroken"]
    assert run_command(["run", *words]) == 0
    unbroken = here / "runs" / "unbroken"
    assert final_tensors(job) == final_tensors(unbroken)
    assert best_tensors(job) == best_tensors(unbroken)
    assert untimed(job) == untimed(unbroken)


def untimed(folder: Path) -> dict[str, Any]:
    result = json.loads((folder / RESULT).read_text())
    return {k: v for k, v in result.items() if k not in ("name", "totals")}


def rounds_of(job: Path) -> int:
    path = job / METRICS
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_for_rounds(job: Path, number: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while rounds_of(job) < number:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def wait_until_free(job: Path) -> None:
    deadline = time.monotonic() + 60
    while is_locked(job):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_job_that_another_process_works_on_is_not_touched(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = here / "runs" / "s" / "fedrecgel-s0"
    job.mkdir(parents=True)
    (here / "runs" / "s" / "sweep.json").write_text("{}")
    with locked(job):
        assert sweep("seed=0", *NARROW) == 1
    assert "is in use by process" in capsys.readouterr().out
