"""A SuperLink and SuperNodes as real processes, for the end-to-end tests."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from real_commands import BINARIES

from client_app.distribute import distribute, even_sizes
from conf.compose import compose
from conf.overrides import absolute_overrides
from server_app.callbacks import read_metrics
from server_app.deployment import CERTIFICATES, PREPARED, Deployment, Member
from server_app.processes import Process, descendants, end_trees, process
from server_app.superlink_home import command_line

WAIT_S = 180.0
CLIENT = "flwr-clientapp"


class Site:
    """One deployment and the runs on it, in a folder of a test."""

    def __init__(
        self,
        place: Path,
        environment: dict[str, str],
        settings: Sequence[str],
        nodes: int,
        users: int | None = None,
    ) -> None:
        """``users``: of the data set; None counts those of ``ratings.csv``."""
        self.place, self.environment, self.settings = place, environment, list(settings)
        cfg = compose(absolute_overrides(self.settings, place))
        users = users or len({line.split(",")[0] for line in _lines(place)})
        distribute(cfg, place / "deployment" / PREPARED, even_sizes(users, nodes))
        self.deployment = Deployment(place / "deployment")

    def secure(self) -> None:
        """Talk TLS from the first start on."""
        (self.deployment.folder / CERTIFICATES).mkdir(mode=0o700)
        self.deployment = Deployment(self.deployment.folder)

    # ---- runs ----------------------------------------------------------------------------
    def command(self, *arguments: str) -> list[str]:
        where = self.deployment.connection.options
        return [str(BINARIES / "fedrecgel"), "run", *arguments, *where]

    def new(self, name: str, *overrides: str) -> list[str]:
        nodes = len(self.deployment.node_folders)
        deployed = ["federation=deployment", f"federation.num_nodes={nodes}"]
        return self.command(*deployed, *self.settings, *overrides, "--name", name)

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.place,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S * 2,
            check=False,
        )

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self.place,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def rounds(self, name: str) -> list[dict[str, object]]:
        folder = self.place / "runs" / name
        return read_metrics(folder) if (folder / "metrics.jsonl").exists() else []

    def tensors(self, name: str, last: int) -> bytes:
        """Shared parameters after the last round, as they lie on the disk."""
        path = self.place / "runs" / name / "checkpoint" / f"round-{last:09d}"
        return (path / "tensors.safetensors").read_bytes()

    # ---- faults --------------------------------------------------------------------------
    def member(self, index: int) -> Member:
        return self.deployment.members[self.deployment.node_folders[index].name]

    def kill_node(self, index: int) -> None:
        """SIGKILL to a SuperNode and to all it started."""
        kill(self.member(index))

    def restart_node(self, index: int) -> None:
        self.deployment.start_node(self.deployment.node_folders[index])

    def client_of(self, index: int) -> Process | None:
        """The process in which a node answers a message just now."""
        member = self.member(index)
        below = descendants([Process(member.pid, member.started)])
        return next((p for p in below if CLIENT in command_line(p.pid)), None)


def kill(member: Member) -> None:
    root = Process(member.pid, member.started)
    tree = {root, *descendants([root])}
    assert member.is_alive
    # No grace: SIGKILL to all of them.
    end_trees_now(tree)
    assert not any(process(p.pid) == p for p in tree)


def end_trees_now(tree: set[Process]) -> None:
    import os
    import signal

    for target in tree:
        try:
            os.kill(target.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    end_trees(tree, 5.0)


def until(what: Callable[[], object], seconds: float = WAIT_S, pause: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(pause)


def _lines(place: Path) -> list[str]:
    return (place / "ratings.csv").read_text().splitlines()
