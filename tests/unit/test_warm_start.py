"""ClientApp processes forked from a warm one: as if each had been started by itself."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server_app import warm_start
from server_app.processes import Process, descendants, process

pytestmark = pytest.mark.skipif(not warm_start.is_possible(), reason="needs Linux")

HERE = Path(warm_start.__file__).parent
LAUNCHER = """
import json, os, runpy, subprocess, sys, threading, time
server, socket, threads = sys.argv[1:4]
work = '''
def work():
    import json, os, signal, sys, time
    told = {"arguments": sys.argv[1:], "x": os.environ.get("X"), "cwd": os.getcwd()}
    told["packages"] = [n for n in ("models", "client_app", "server_app") if n in sys.modules]
    told["pid"], told["path"] = os.getpid(), sys.path
    if "sleep" in sys.argv:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    print(json.dumps(told), flush=True)
    if "sleep" in sys.argv:
        # A signal that comes between the interpreter's last look for one and the system call
        # does not end the sleep: with short ones the handler is at most one of them late.
        for _ in range(6000):
            time.sleep(0.01)
    if "raise" in sys.argv:
        raise RuntimeError("no")
    sys.stdout.flush()
    os._exit(int(sys.argv[1]))
'''
start = f'''
import runpy, sys, threading, time
parts = runpy.run_path({server!r})["main"].__globals__
exec({work!r}, parts)
parts["preload"] = lambda: None
if {threads} > 1: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
parts["main"]({socket!r}, int(sys.argv[1]))
'''
child = subprocess.Popen([sys.executable, "-I", "-c", start, str(os.getpid())])
print(child.pid, flush=True)
time.sleep(60)
"""
"""Stands for a SuperNode: starts a warm server whose ClientApp only tells what it was given."""


class Warm:
    """A launcher with its server, and the stand-in for ``flwr-clientapp``."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        self.folder, self.socket = folder, folder / "socket"
        real = folder / "real"
        real.write_text('#!/bin/sh\necho "real $*"\n')
        real.chmod(0o700)
        self.command = [sys.executable, "-I", "-S", str(HERE / "warm_shim.py")]
        self.command += [str(self.socket), str(real)]
        arguments = [str(HERE / "warm_server.py"), str(self.socket), str(threads)]
        self.launcher = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, *arguments], stdout=subprocess.PIPE, text=True
        )
        assert self.launcher.stdout is not None
        found = process(int(self.launcher.stdout.readline()))
        assert found is not None
        self.server: Process = found
        until(self.socket.exists)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *arguments],
            env={**os.environ, **variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*self.command, *arguments], stdout=subprocess.PIPE, text=True)


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def told(line: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(line)
    return found


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Warm]:
    made = Warm(tmp_path)
    yield made
    made.launcher.kill()
    made.launcher.wait()


def test_a_fork_is_given_what_a_process_of_its_own_would_have(warm: Warm) -> None:
    done = warm.run("0", "--token", "a b", X="7")
    assert done.returncode == 0, done.stderr
    found = told(done.stdout)
    assert found["arguments"] == ["0", "--token", "a b"]
    assert (found["x"], found["cwd"]) == ("7", str(warm.folder))
    # The application comes from Flower's bundle, so nothing of it may be there already.
    assert found["packages"] == []
    assert warm.run("0").stdout != done.stdout  # another process each time


def test_a_fork_finds_modules_where_a_process_of_its_own_would(warm: Warm) -> None:
    found = told(warm.run("0", PYTHONPATH=os.pathsep.join(("/one", "", "/two"))).stdout)
    path = found["path"]
    assert isinstance(path, list) and path[:2] == ["/one", "/two"]
    assert "/one" not in str(told(warm.run("0", PYTHONPATH="/two").stdout)["path"])


def test_the_server_outlives_an_interrupt_and_its_forks_do_not_ignore_it(warm: Warm) -> None:
    os.kill(warm.server.pid, signal.SIGINT)
    waiting = warm.start("0", "sleep")
    assert waiting.stdout is not None
    told(waiting.stdout.readline())
    waiting.send_signal(signal.SIGINT)
    # An uncaught KeyboardInterrupt: the interpreter ends by the signal itself.
    assert waiting.wait(timeout=30) == 128 + signal.SIGINT


def test_exit_status_and_uncaught_errors(warm: Warm) -> None:
    assert warm.run("5").returncode == 5
    failed = warm.run("0", "raise")
    assert failed.returncode == 1
    assert "RuntimeError: no" in failed.stderr
    assert warm.run("0").returncode == 0


def test_signals_reach_the_fork(warm: Warm) -> None:
    waiting = warm.start("0", "sleep")
    assert waiting.stdout is not None
    told(waiting.stdout.readline())
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(timeout=30) == 7


def test_a_fork_ends_with_its_stand_in(warm: Warm) -> None:
    waiting = warm.start("0", "sleep")
    assert waiting.stdout is not None
    fork = process(int(str(told(waiting.stdout.readline())["pid"])))
    assert fork is not None and fork in descendants([warm.server])
    waiting.kill()
    waiting.wait()
    until(lambda: process(fork.pid) != fork)
    assert warm.run("0").returncode == 0


def test_all_ends_when_the_launcher_is_killed(warm: Warm) -> None:
    os.kill(warm.launcher.pid, signal.SIGKILL)
    warm.launcher.wait()
    until(lambda: process(warm.server.pid) != warm.server)


def test_without_a_server_the_real_program_runs(warm: Warm) -> None:
    os.kill(warm.server.pid, signal.SIGKILL)
    until(lambda: process(warm.server.pid) != warm.server)
    done = warm.run("1", "2")
    assert (done.returncode, done.stdout) == (0, "real 1 2\n")
    assert "no warm start" in done.stderr


def test_a_server_with_threads_does_not_fork(tmp_path: Path) -> None:
    threaded = Warm(tmp_path, threads=2)
    try:
        done = threaded.run("3")
        assert done.stdout == "real 3\n"
        assert "the warm server has other threads" in done.stderr
    finally:
        threaded.launcher.kill()
        threaded.launcher.wait()


def test_the_socket_is_this_users_alone(warm: Warm) -> None:
    assert warm.socket.stat().st_mode & 0o077 == 0


def test_the_stand_in_is_found_first_and_names_the_real_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    root = tmp_path / f"fedrecgel-{os.getuid()}"
    (root / str(ended.pid)).mkdir(parents=True)
    root.chmod(0o700)
    started = list[list[str]]()
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
    env = warm_start.warmed({"PATH": "/bin"})
    folder, rest = env["PATH"].split(os.pathsep)
    assert rest == "/bin"
    assert [p.name for p in root.iterdir()] == [Path(folder).name]  # the ended one's is gone
    stand_in = Path(folder) / "flwr-clientapp"
    words = shlex.split(stand_in.read_text().splitlines()[1])
    assert words[-2].endswith("/flwr-clientapp") and words[-1] == "$@"
    assert stand_in.stat().st_mode & 0o777 == 0o700
    (command,) = started
    assert command[-1] == str(os.getpid())
