"""Plain ``flwr run``: a run from the project folder, and the trap of stale client code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_commands import BINARIES

from conf.fingerprint import PACKAGES
from server_app.superlink_home import command_line, free_port

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
OVERRIDES = "dataset=file model.factors=4 protocol.num_candidates=20 federation.rounds=2"


class Flower:
    """The ``flwr`` command with a home and ports of its own, started in a given folder."""

    def __init__(self, home: Path, start_in: Path) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR_", "UV_"))}
        self._start_in = start_in
        self._port = free_port()
        self.env = {
            **kept,
            "PATH": f"{BINARIES}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(home),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(self._port),
            "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FEDRECGEL_RUNS": str(home / "runs"),
            # Dependency installation stays on, as for anyone; offline it would have to fail
            # if there were anything to install.
            "UV_OFFLINE": "1",
            "UV_CACHE_DIR": str(home / "uv"),
        }

    def command(self, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [str(BINARIES / "flwr"), *arguments, "--format", "json"],
            cwd=self._start_in,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        return found

    def run(self, app: Path, overrides: str) -> dict[str, Any]:
        """Submit, wait for the end and return what ``flwr list`` says."""
        text = json.dumps(overrides)
        run_id = self.command("run", str(app), "--run-config", f"overrides={text}")["run-id"]
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            (run,) = self.command("list", "--run-id", run_id)["runs"]
            if run["status"].startswith("finished"):
                return dict(run)
            time.sleep(1.0)
        raise AssertionError(f"the run does not end: {run}")

    def stop(self) -> None:
        """End the SuperLink that listens on our port."""
        for proc in Path("/proc").glob("[0-9]*"):
            command = command_line(int(proc.name))
            if "flower-superlink" in command and f"--port {self._port} " in command:
                os.kill(int(proc.name), signal.SIGTERM)


@pytest.fixture
def second_checkout(tmp_path: Path) -> Path:
    """A copy of the packages whose client code was edited."""
    folder = tmp_path / "second"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package)
    with (folder / "client_app" / "training.py").open("a") as file:
        file.write("\n# edited\n")
    return folder


@pytest.fixture
def flower(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Flower]:
    """Flower started in the folder that the test names, ended afterwards."""
    (tmp_path / "empty").mkdir()
    folder = request.getfixturevalue(request.param) if request.param else tmp_path / "empty"
    started = Flower(tmp_path / "home", folder)
    yield started
    started.stop()


@pytest.mark.parametrize("flower", [None], indirect=True)
def test_flwr_run_of_the_project_folder(flower: Flower, place: Path, tmp_path: Path) -> None:
    where = f"dataset.path={place / 'ratings.csv'} cache={tmp_path / 'cache'}"
    run = flower.run(ROOT, f"{OVERRIDES} strategy=fedncf {where}")
    assert run["status"] == "finished:completed", run["status-details"]
    (folder,) = (tmp_path / "home" / "runs").iterdir()
    assert folder.name.startswith("file-fedncf-s0-")
    result = json.loads((folder / "result.json").read_text())
    assert (result["strategy"], result["rounds"]) == ("fedncf", 2)


@pytest.mark.parametrize("flower", ["second_checkout"], indirect=True)
def test_stale_client_code_is_refused(flower: Flower, place: Path, tmp_path: Path) -> None:
    """Ray workers import the packages of the folder in which the SuperLink was started."""
    where = f"dataset.path={place / 'ratings.csv'} cache={tmp_path / 'cache'}"
    run = flower.run(ROOT, f"{OVERRIDES} {where}")
    assert run["status"] == "finished:failed"
    assert "other code than the server" in run["status-details"]
    assert str(tmp_path / "second") in run["status-details"]
    assert "fedrecgel stop" in run["status-details"]
