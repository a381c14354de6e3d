"""Process trees: what is ended, also against its will, and what is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import which

import pytest

from server_app.processes import Process, _table_of_ps, descendants, end_trees, process

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[str], Process]]:
    """A process and its child, which has a session of its own and ignores SIGTERM."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, STUBBORN], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = process(int(parent.stdout.readline()))
    assert child is not None
    while not _ignores_sigterm(child.pid):
        time.sleep(0.01)
    yield parent, child
    parent.kill()
    parent.wait()
    end_trees([child], 0.0)


def _ignores_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = int(status.partition("SigIgn:\t")[2].split()[0], 16)
    return bool(ignored >> (signal.SIGTERM - 1) & 1)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")


@needs_proc
def test_a_tree_is_ended_also_where_it_ignores_sigterm(
    family: tuple[subprocess.Popen[str], Process],
) -> None:
    parent, child = family
    bystander = subprocess.Popen([sys.executable, "-c", STUBBORN])
    try:
        root = process(parent.pid)
        assert root is not None
        assert descendants([root]) == {child}
        end_trees([root], 0.3)
        assert parent.wait(timeout=10) == -signal.SIGTERM
        assert process(child.pid) is None
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@needs_proc
def test_a_process_with_another_start_time_is_not_signalled(
    family: tuple[subprocess.Popen[str], Process],
) -> None:
    parent, child = family
    root = process(parent.pid)
    assert root is not None
    end_trees([replace(root, started="0"), replace(child, started="0")], 0.0)
    assert descendants([replace(root, started="0")]) == set()
    assert parent.poll() is None and process(child.pid) == child


@needs_proc
@pytest.mark.skipif(which("ps") is None, reason="there is no ps")
def test_ps_says_the_same_as_proc(family: tuple[subprocess.Popen[str], Process]) -> None:
    parent, child = family
    by_pid = {found.pid: parent_id for found, parent_id in _table_of_ps().items()}
    assert by_pid[child.pid] == parent.pid
    assert by_pid[parent.pid] == os.getpid()
