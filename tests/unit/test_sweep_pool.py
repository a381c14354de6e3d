"""Processes of a sweep: every task is done or has its reason, whatever becomes of a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.sweep.pool import THREADS, Ended, Progressed, work
from experiments.sweep.tasks import Report
from server_app.errors import RoundError


@dataclass(frozen=True)
class Toy:
    """Leaves a file, or fails in the way that its word says."""

    label: str
    folder: Path
    word: str = ""
    size: int = 2
    made_of: Any = None

    def make(self, report: Report) -> None:
        report(1)
        if self.word == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.word == "round":
            raise RoundError("no\nmore")
        if self.word == "sleep":
            (self.folder / "pid").write_text(str(os.getpid()))
            time.sleep(60)
        if self.word:
            raise KeyError(self.word)
        print("a library says something")
        (self.folder / self.label).write_text(os.environ[THREADS[0]])


def test_what_becomes_of_each_task(tmp_path: Path) -> None:
    words = ["", "killed", "round", "other", "", ""]
    tasks = [Toy(f"t{i}", tmp_path, word) for i, word in enumerate(words)]
    events = list(work(tasks, 2, tmp_path / "log"))
    ends = {e.task.label: e.failure for e in events if isinstance(e, Ended)}
    assert sorted(ends) == [task.label for task in tasks]
    done = {label for label, failure in ends.items() if failure is None}
    assert done == {"t0", "t4", "t5"} == {path.name for path in tmp_path.glob("t*")}
    killed, failed, other = ends["t1"], ends["t2"], ends["t3"]
    assert killed is not None and failed is not None and other is not None
    assert "ended by SIGKILL" in killed.reason and not killed.deterministic
    assert (failed.reason, failed.deterministic) == ("no", True)
    assert (other.reason, other.deterministic) == ("KeyError: 'other'", False)
    assert "line" in other.detail
    begun = [(e.task.label, e.rounds) for e in events if isinstance(e, Progressed)]
    assert {(label, rounds) for label in ends for rounds in (0, 1)} == set(begun)
    # One thread a child unless the caller says otherwise; their output is out of the way.
    assert (tmp_path / "t0").read_text() == os.environ.get(THREADS[0], "1")
    assert (tmp_path / "log").read_text() == "a library says something\n" * 3


def test_children_end_when_the_iteration_is_given_up(tmp_path: Path) -> None:
    events = work([Toy("t", tmp_path, "sleep")], 1, tmp_path / "log")
    assert isinstance(next(events), Progressed)
    pid = _pid(tmp_path)
    events.close()  # type: ignore[attr-defined]
    assert not _lives(pid)


def test_children_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from test_sweep_pool import Toy; "
        "from experiments.sweep.pool import work; "
        f"folder = Path({str(tmp_path)!r}); "
        "list(work([Toy('t', folder, 'sleep')], 1, folder / 'log'))"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
    try:
        pid = _pid(tmp_path)
    finally:
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 60
    while _lives(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _pid(folder: Path) -> int:
    deadline = time.monotonic() + 120
    while not (folder / "pid").exists() or not (folder / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int((folder / "pid").read_text())


def _lives(pid: int) -> bool:
    """Whether the process runs; one that nobody waited for is as dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
