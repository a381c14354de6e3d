"""The home of the local SuperLink: what is ours, what is refused, what is never ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conf.fingerprint import PACKAGES, code_fingerprint, hash_sources
from server_app import superlink
from server_app.processes import descendants, end_trees, process
from server_app.staging import stage
from server_app.superlink_home import (
    RECORD,
    SuperLink,
    command_line,
    environment,
    free_port,
    home_folder,
    is_ours,
    read_record,
    versions,
    write_record,
)

SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDRECGEL_HOME", str(tmp_path / "home"))
    return home_folder()


@pytest.fixture
def other_process() -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else."""
    process = subprocess.Popen([sys.executable, "-c", SLEEP])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def fake_superlink(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose command line is that of this home's SuperLink."""
    arguments = ["flower-superlink", "--database", str(home / "state.db")]
    process = subprocess.Popen([sys.executable, "-c", SLEEP, *arguments])
    deadline = time.monotonic() + 10
    while not command_line(process.pid) and time.monotonic() < deadline:
        time.sleep(0.01)  # the kernel fills it in shortly after the start
    yield process
    process.kill()
    process.wait()


def link(pid: int) -> SuperLink:
    return SuperLink(pid, 50505, sys.prefix, versions())


def test_the_record_is_read_back_and_names_the_connection(home: Path) -> None:
    write_record(home, link(7))
    assert read_record(home) == link(7)
    connections = tomllib.loads((home / "config.toml").read_text())
    assert connections["superlink"]["local"]["address"] == "127.0.0.1:50505"
    (home / RECORD).write_text("{")
    assert read_record(home) is None


def test_a_reused_process_id_is_not_ours_and_is_not_ended(
    home: Path, other_process: subprocess.Popen[bytes]
) -> None:
    write_record(home, link(other_process.pid))
    assert not is_ours(link(other_process.pid), home)
    assert superlink.running() is None
    assert superlink.stop() is None
    assert other_process.poll() is None
    assert not (home / RECORD).exists()


def test_a_superlink_of_another_home_is_not_ours(
    tmp_path: Path, fake_superlink: subprocess.Popen[bytes]
) -> None:
    assert not is_ours(link(fake_superlink.pid), tmp_path / "elsewhere")


def test_stop_ends_ours(home: Path, fake_superlink: subprocess.Popen[bytes]) -> None:
    write_record(home, link(fake_superlink.pid))
    assert superlink.running() == link(fake_superlink.pid)
    assert superlink.stop() == link(fake_superlink.pid)
    assert fake_superlink.wait(timeout=10) == -15
    assert superlink.stop() is None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_stop_ends_the_runs_of_ours_and_no_other(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ignores SIGTERM, with a Ray process, and a run of another SuperLink."""
    monkeypatch.setattr(superlink, "RUN_GRACE_S", 0.2)
    ours, theirs = (_with_a_run(folder) for folder in (home, home / "elsewhere"))
    try:
        pids = [int(line.readline()) for line in (ours.stdout, theirs.stdout) if line]
        run, other = (process(pid) for pid in pids)
        assert run is not None and other is not None
        while not descendants([run]):
            time.sleep(0.01)
        tree = {run, *descendants([run])}
        write_record(home, link(ours.pid))
        assert superlink.stop() == link(ours.pid)
        assert ours.wait(timeout=10) == -15
        assert not any(process(p.pid) == p for p in tree)
        assert process(other.pid) == other and theirs.poll() is None
    finally:
        for popen in (ours, theirs):
            root = process(popen.pid)
            end_trees({root, *descendants([root])} if root else (), 0.0)
            popen.wait()


def _with_a_run(home: Path) -> subprocess.Popen[str]:
    """A process like the SuperLink of ``home``, which prints the id of its run's process."""
    ray = "import signal, subprocess, sys, time; signal.signal(15, signal.SIG_IGN); "
    ray += f"subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); time.sleep(60)"
    start = "import subprocess, sys, time; print(subprocess.Popen([sys.executable, '-c', "
    start += f"{ray!r}, 'flwr-simulation'], start_new_session=True).pid, flush=True); "
    command = [sys.executable, "-c", start + SLEEP]
    arguments = ["flower-superlink", "--database", str(home / "state.db")]
    return subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)


def test_what_is_no_run_is_not_ended(other_process: subprocess.Popen[bytes]) -> None:
    superlink.end_run(other_process.pid)
    assert other_process.poll() is None


def test_one_of_another_environment_is_refused(
    home: Path, fake_superlink: subprocess.Popen[bytes]
) -> None:
    for change in ({"prefix": "/other"}, {"versions": "flwr 1.0"}):
        write_record(home, replace(link(fake_superlink.pid), **change))
        with pytest.raises(superlink.SuperLinkError, match="fedrecgel stop"):
            superlink.ensure()
    assert fake_superlink.poll() is None


def test_a_dead_record_leads_to_a_new_start(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    write_record(home, link(process.pid))
    monkeypatch.setattr(superlink, "_launch", lambda home, port: link(1))
    assert superlink.ensure() == link(1)


def test_a_superlink_that_does_not_start_is_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(superlink, "_command", lambda home, port: [sys.executable, "-c", ""])
    with pytest.raises(superlink.SuperLinkError, match=r"does not start; see .*superlink\.log"):
        superlink.ensure()


def test_environment_is_neutral(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    env = environment(home)
    assert "PYTHONPATH" not in env
    assert env["FLWR_HOME"] == str(home)
    assert env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    # Flower starts its programs by name.
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_homes_of_two_environments_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDRECGEL_HOME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first = home_folder()
    monkeypatch.setattr(sys, "prefix", "/other/environment")
    assert home_folder() != first
    assert first.parent == tmp_path / "fedrecgel"


def test_free_ports_can_be_bound() -> None:
    assert 1024 < free_port() < 65536


def test_the_staged_app_is_this_code(home: Path) -> None:
    app = stage(home)
    assert hash_sources({name: app / name for name in PACKAGES}) == code_fingerprint()
    assert stage(home) == app
    assert [p.name for p in app.parent.iterdir()] == [app.name]
    suffixes = {p.suffix for p in app.rglob("*") if p.is_file()}
    assert suffixes == {".py", ".yaml", ".toml"}
    project = tomllib.loads((app / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == ["flwr[simulation]>=1.42,<1.43"]
    repository = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["tool"]["flwr"] == repository["tool"]["flwr"]
    assert project["project"]["version"] == repository["project"]["version"]
