"""A SuperLink and three SuperNodes as real processes: equal to simulation, and killed with -9.

A run that lost nothing and trained nobody twice has the bytes of one that was left alone:
the parameters depend on every user's private state of every round.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_up import write_interactions
from real_commands import BINARIES, Command
from real_deployment import Site, kill, until

from server_app.lock import is_locked, lock_holder
from server_app.results import load_result
from server_app.superlink_home import command_line, free_port

pytestmark = pytest.mark.e2e

NODES, ROUNDS = 3, 4
SETTINGS = [
    "dataset=file",
    "dataset.path=ratings.csv",
    "model.factors=4",
    "protocol.num_candidates=20",
    f"federation.rounds={ROUNDS}",
    "federation.fraction=1.0",
    "evaluation.every=2",
]


@pytest.fixture(scope="module")
def site(place: Path, environment: dict[str, str], fedrecgel: Command) -> Iterator[Site]:
    """A deployment that is up, and the run of the same federation by simulation to compare."""
    local = ["federation.grid=local", f"federation.num_nodes={NODES}", "--name", "simulated"]
    simulated = fedrecgel("run", *SETTINGS, *local)
    assert simulated.returncode == 0, simulated.stderr
    found = Site(place, environment, SETTINGS, NODES)
    try:
        found.deployment.start()
        yield found
    finally:
        found.deployment.stop()


def assert_as_simulated(site: Site, name: str) -> None:
    assert site.tensors(name, ROUNDS) == site.tensors("simulated", ROUNDS)
    deployed, simulated = (load_result(site.place / "runs" / n) for n in (name, "simulated"))
    assert deployed.metrics == simulated.metrics
    assert deployed.popularity == simulated.popularity
    # Round 2 was ranked with round 3's training messages, round 4 as the last.
    assert [line["evaluated_round"] for line in site.rounds(name)] == [None, None, 2, 4]


def test_a_deployment_equals_the_simulation_to_the_bit(site: Site) -> None:
    done = site.run(site.new("deployed"))
    assert done.returncode == 0, done.stderr
    assert_as_simulated(site, "deployed")
    # Every node keeps its users' state beside its data.
    assert all((folder / "store.sqlite").exists() for folder in site.deployment.node_folders)
    assert not (site.place / "runs" / "deployed" / "nodes").exists()


def test_tables_of_single_users_travel_as_in_the_simulation(site: Site, fedrecgel: Command) -> None:
    """GPFedRec: each user's table up, each user's target down, from the second round on."""
    other = ["strategy=gpfedrec", "federation.rounds=3"]
    local = ["federation.grid=local", f"federation.num_nodes={NODES}", "--name", "tables-local"]
    simulated = fedrecgel("run", *SETTINGS, *other, *local)
    assert simulated.returncode == 0, simulated.stderr
    done = site.run(site.new("tables", *other))
    assert done.returncode == 0, done.stderr
    assert site.tensors("tables", 3) == site.tensors("tables-local", 3)
    deployed, expected = (
        load_result(site.place / "runs" / name).metrics for name in ("tables", "tables-local")
    )
    assert deployed == expected


@pytest.mark.faults
def test_kill_9_of_a_node_in_training(site: Site) -> None:
    running = site.start(site.new("training"))
    until(lambda: len(site.rounds("training")) == 1)
    until(lambda: site.client_of(1))
    site.kill_node(1)
    site.restart_node(1)
    output, _ = running.communicate(timeout=300)
    assert running.returncode == 0, output
    assert_as_simulated(site, "training")


@pytest.mark.faults
def test_kill_9_of_a_node_in_its_commit(site: Site) -> None:
    """The store is written to: the commit is under way, or has just been made."""
    log = site.deployment.node_folders[2] / "store.sqlite-wal"
    running = site.start(site.new("commit"))
    until(lambda: len(site.rounds("commit")) == 1)
    before = _stamp(log)
    until(lambda: _stamp(log) != before, pause=0.0005)
    site.kill_node(2)
    site.restart_node(2)
    output, _ = running.communicate(timeout=300)
    assert running.returncode == 0, output
    assert_as_simulated(site, "commit")


@pytest.mark.faults
def test_kill_9_of_an_idle_node(site: Site) -> None:
    """It is killed between two runs, and between two messages of one."""
    site.kill_node(0)
    site.restart_node(0)
    running = site.start(site.new("idle"))
    until(lambda: len(site.rounds("idle")) == 1)
    until(lambda: site.client_of(0) is None)
    site.kill_node(0)
    site.restart_node(0)
    output, _ = running.communicate(timeout=300)
    assert running.returncode == 0, output
    assert_as_simulated(site, "idle")


@pytest.mark.faults
def test_kill_9_of_the_servers_process(site: Site) -> None:
    running = site.start(site.new("server"))
    until(lambda: len(site.rounds("server")) == 1)
    pid = lock_holder(site.place / "runs" / "server")
    assert pid is not None and "flwr-serverapp" in command_line(pid)
    os.kill(pid, signal.SIGKILL)
    output, _ = running.communicate(timeout=300)
    assert running.returncode == 1, output
    where = " ".join(site.deployment.connection.options)
    assert (
        f"continue with: fedrecgel run --resume {site.place / 'runs' / 'server'} {where}" in output
    )
    resumed = site.run(site.command("--resume", "server"))
    assert resumed.returncode == 0, resumed.stderr
    assert_as_simulated(site, "server")


@pytest.mark.faults
def test_kill_9_of_the_superlink(site: Site) -> None:
    running = site.start(site.new("link"))
    until(lambda: len(site.rounds("link")) == 1)
    kill(site.deployment.members["superlink"])
    output, _ = running.communicate(timeout=300)
    assert running.returncode != 0, output
    until(lambda: not is_locked(site.place / "runs" / "link"))
    site.deployment.start()
    resumed = site.run(site.command("--resume", "link"))
    assert resumed.returncode == 0, resumed.stderr
    assert_as_simulated(site, "link")


@pytest.mark.faults
def test_tls_and_keys(
    tmp_path: Path, environment: dict[str, str], site: Site, fedrecgel: Command
) -> None:
    """Nodes whose keys are registered take part; one whose key is not ends with Flower's 305."""
    write_interactions(tmp_path / "ratings.csv")
    secure = Site(tmp_path, environment, SETTINGS, NODES)
    secure.secure()
    try:
        secure.deployment.start()
        done = secure.run(secure.new("secure"))
        assert done.returncode == 0, done.stderr
        assert secure.tensors("secure", ROUNDS) == site.tensors("simulated", ROUNDS)
        certificates = secure.deployment.certificates
        assert certificates is not None
        stranger = fedrecgel("certificates", "--out", str(tmp_path / "other"), "--nodes", "1")
        assert stranger.returncode == 0
        key = tmp_path / "other" / "node-000"
        # Into a file: a pipe stays open in the node's executor, which in turn waits until the
        # node is gone for good, and that it is when it has been waited for.
        with (tmp_path / "stranger.log").open("w") as log:
            refused = subprocess.run(
                [
                    *(str(BINARIES / "fedrecgel"), "supernode", "--cold"),
                    *("--port", str(free_port())),
                    *("--superlink", secure.deployment.connection.address),
                    *("--root-certificates", str(certificates.ca_certificate)),
                    *("--auth-supernode-private-key", str(key)),
                ],
                cwd=tmp_path,
                env={**environment, "FLWR_HOME": str(tmp_path / "stranger")},
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=120,
                check=False,
            )
        assert "305" in (tmp_path / "stranger.log").read_text()
        assert refused.returncode != 0
    finally:
        secure.deployment.stop()


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size
