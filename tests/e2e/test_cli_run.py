"""``fedrecgel run`` through a real SuperLink and Ray, from a CSV to a list of items."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from made_up import SMALL_RUN
from real_commands import BINARIES, Command

from server_app import processes
from server_app.callbacks import read_metrics
from server_app.results import load_result
from server_app.run_folder import read_state
from server_app.superlink_home import command_line, read_record

pytestmark = pytest.mark.e2e

LONG = ["federation.rounds=100", "evaluation.every=20"]


def test_run_in_ray_equals_the_run_in_process(place: Path, fedrecgel: Command) -> None:
    ray = fedrecgel("run", *SMALL_RUN, "--name", "ray")
    assert ray.returncode == 0, ray.stderr
    assert "popularity" in ray.stdout
    assert "Top 10 for user 1" in ray.stdout
    assert f"Results: {place / 'runs' / 'ray'}" in ray.stdout
    assert "round 2/3" in ray.stdout
    assert "Round 3/3" in (place / "runs" / "ray" / "flwr.log").read_text()

    local = fedrecgel("run", *SMALL_RUN, "federation.grid=local", "--name", "local")
    assert local.returncode == 0, local.stderr
    a, b = (load_result(place / "runs" / name) for name in ("ray", "local"))
    # Same shards, same order of sums, one thread each: the same bits.
    assert a.metrics == b.metrics
    assert a.popularity == b.popularity
    assert a.selected_round == b.selected_round
    tensors = "checkpoint/round-000000003/tensors.safetensors"
    assert (a.folder / tensors).read_bytes() == (b.folder / tensors).read_bytes()


def test_a_run_whose_clients_fail_is_a_failed_command(place: Path, fedrecgel: Command) -> None:
    good = (place / "ratings.csv").read_text()
    (place / "bad.csv").write_text(good + "3,3\n")
    number = len(good.splitlines()) + 1
    done = fedrecgel("run", *SMALL_RUN, "dataset.path=bad.csv", "--name", "bad")
    assert done.returncode == 1
    assert f"bad.csv:{number}" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "flwr.log" in done.stderr
    listed = fedrecgel("runs", "bad")
    assert listed.returncode == 0
    assert "status: failed" in listed.stdout


def test_ctrl_c_stops_the_run_which_then_continues_to_the_same_bytes(
    place: Path, environment: dict[str, str], fedrecgel: Command
) -> None:
    folder, long = place / "runs" / "long", [*SMALL_RUN, *LONG]
    process = _started(place, environment, [*long, "--name", "long"], folder)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert f"continue with: fedrecgel run --resume {folder}" in error
    # Nothing trains any more.
    reached = len(read_metrics(folder))
    assert 3 <= reached < 100
    time.sleep(1.0)
    assert len(read_metrics(folder)) == reached

    assert fedrecgel("run", "--resume", "long", "federation.grid=local").returncode == 0
    whole = fedrecgel("run", *long, "federation.grid=local", "--name", "whole")
    assert whole.returncode == 0, whole.stderr
    tensors = "checkpoint/round-000000100/tensors.safetensors"
    expected = (place / "runs" / "whole" / tensors).read_bytes()
    assert (folder / tensors).read_bytes() == expected


def test_stop_ends_the_superlink_with_its_run_and_nothing_else(
    place: Path, environment: dict[str, str], fedrecgel: Command
) -> None:
    folder = place / "runs" / "ended"
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        endless = [*SMALL_RUN, "federation.rounds=100000", "--name", "ended"]
        process = _started(place, environment, endless, folder)
        link = read_record(Path(environment["FEDRECGEL_HOME"]))
        assert link is not None
        root = processes.process(link.pid)
        assert root is not None
        tree = processes.descendants([root])
        assert any("flwr-simulation" in command_line(p.pid) for p in tree)
        assert fedrecgel("stop").stdout.strip() == f"stopped pid {link.pid}"
        assert not any(processes.process(p.pid) == p for p in {root, *tree})
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"; continue with: fedrecgel run --resume {folder}" in error
    assert read_state(folder).status == "interrupted"
    assert fedrecgel("stop").stdout.strip() == "no SuperLink was running"


def _started(
    place: Path, environment: dict[str, str], arguments: list[str], folder: Path
) -> subprocess.Popen[str]:
    """A run in the background that has trained three rounds."""
    process = subprocess.Popen(
        [str(BINARIES / "fedrecgel"), "run", *arguments],
        cwd=place,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_ctrl_c,  # noqa: PLW1509
    )
    deadline = time.monotonic() + 120
    while not (folder / "metrics.jsonl").exists() or len(read_metrics(folder)) < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    return process


def _heed_ctrl_c() -> None:
    # A process started in the background of a shell would ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
