"""A whole deployment on this machine: one SuperLink and SuperNodes, each a process of its own.

Every process has a Flower home, a log and a port of its own, as it would on a machine of its
own. What runs is written into ``deployment.json``, so that another command can look after it.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from server_app.certificates import Certificates, make
from server_app.connection import Connection
from server_app.errors import SuperLinkError
from server_app.files import replace_json
from server_app.node_list import FlowerNode, list_nodes, register
from server_app.processes import Process, end_trees, process
from server_app.superlink_home import EMPTY, HOST, environment, free_port, program, write_connection

RECORD, PREPARED, CERTIFICATES = "deployment.json", "prepared", "certificates"
VALID_DAYS = 365
START_TIMEOUT_S, NODE_TIMEOUT_S, STOP_GRACE_S = 60.0, 90.0, 3.0
POLL_S = 0.2
LOGGED = 5
"""Last lines of a log that an error shows."""


@dataclass(frozen=True)
class Member:
    """One process of the deployment."""

    name: str
    pid: int
    started: str
    """Tells this process from a later one with the same id."""
    port: int

    @property
    def is_alive(self) -> bool:
        """Whether the very process runs."""
        return process(self.pid) == Process(self.pid, self.started)


class Deployment:
    """The deployment in one folder: ``prepared/node-*`` are the data folders of its nodes.

    Where there is a folder ``certificates`` it talks TLS and knows its nodes by their keys.
    """

    def __init__(self, folder: Path, *, warm: bool = True) -> None:
        """``warm``: messages are answered by forks of a process that has torch imported."""
        self.folder, self._warm = folder, warm
        self.node_folders = tuple(sorted((folder / PREPARED).glob("node-*")))
        keys = folder / CERTIFICATES
        nodes = len(self.node_folders)
        self.certificates: Certificates | None = (
            make(keys, [], nodes, VALID_DAYS) if keys.is_dir() else None
        )
        self.members: dict[str, Member] = _read(folder)

    # ---- SuperLink -----------------------------------------------------------------------
    @property
    def connection(self) -> Connection:
        """How to reach its SuperLink.

        Raises:
            SuperLinkError: before the first start.

        """
        if "superlink" not in self.members:
            raise SuperLinkError(f"{self.folder} has no SuperLink yet")
        ca = None if self.certificates is None else self.certificates.ca_certificate
        return Connection(f"{HOST}:{self.members['superlink'].port}", ca)

    def start_superlink(self) -> None:
        """Start the SuperLink, on the port it had before; nothing where it runs.

        Raises:
            SuperLinkError: when it does not answer in time, with the end of its log.

        """
        if self._runs("superlink"):
            return
        known = self.members.get("superlink")
        home, port = self._home("superlink"), known.port if known else free_port()
        tls = ["--insecure"] if self.certificates is None else _server_tls(self.certificates)
        database = ["--database", str(home / "state.db"), "--log-file", str(home / "superlink.log")]
        self._launch("superlink", ["flower-superlink", *_at(port), *database, *tls], port)
        write_connection(home, self.connection)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.connection.is_healthy():
            self._check("superlink", deadline)
            time.sleep(POLL_S)

    # ---- SuperNodes ----------------------------------------------------------------------
    def start_node(self, folder: Path) -> None:
        """Start the SuperNode of a data folder; nothing where it runs."""
        name = folder.name
        if self._runs(name):
            return
        port = free_port()
        start = ["fedrecgel", "supernode", *([] if self._warm else ["--cold"])]
        command = [*start, "--superlink", self.connection.address, *_at(port)]
        command += ["--node-config", f"data-path={json.dumps(str(folder))}"]
        self._launch(name, [*command, *self._node_tls(folder)], port)

    def start_nodes(self) -> None:
        """Start every SuperNode and wait until the SuperLink sees as many.

        Raises:
            SuperLinkError: when one ends or is not seen in time, with the end of its log.

        """
        for folder in self.node_folders:
            self.start_node(folder)
        deadline = time.monotonic() + NODE_TIMEOUT_S
        while sum(node.online for node in self.nodes()) < len(self.node_folders):
            for folder in self.node_folders:
                self._check(folder.name, deadline)
            time.sleep(POLL_S)

    def nodes(self) -> list[FlowerNode]:
        """The SuperNodes that the SuperLink knows."""
        return list_nodes(self.connection)

    def register_keys(self) -> None:
        """Tell the SuperLink the public key of every node; nothing without certificates."""
        if self.certificates is None:
            return
        public = [key.with_name(key.name + ".pub") for key in self.certificates.node_keys]
        register(self.connection, self._home("superlink"), public)

    # ---- all of them ---------------------------------------------------------------------
    def start(self) -> None:
        """Start what does not run, register keys and wait until all nodes are seen.

        Raises:
            SuperLinkError: naming what does not come up, with the end of its log.

        """
        self.start_superlink()
        self.register_keys()
        self.start_nodes()

    def stop(self) -> list[str]:
        """End every process, nodes first; returns the names of those that ran."""
        running = [member for member in self.members.values() if member.is_alive]
        nodes = [m for m in running if m.name != "superlink"]
        for group in (nodes, [m for m in running if m.name == "superlink"]):
            end_trees([Process(m.pid, m.started) for m in group], STOP_GRACE_S)
        return [member.name for member in running]

    def log(self, name: str) -> Path:
        """Where a process writes its log."""
        return self._home(name) / ("superlink.log" if name == "superlink" else "supernode.log")

    def _said(self, name: str) -> Path:
        """Where what a process prints goes."""
        return self._home(name) / ("output.log" if name == "superlink" else "supernode.log")

    def _runs(self, name: str) -> bool:
        return name in self.members and self.members[name].is_alive

    def _home(self, name: str) -> Path:
        home = self.folder / "processes" / name
        (home / EMPTY).mkdir(parents=True, exist_ok=True)
        return home

    def _node_tls(self, folder: Path) -> list[str]:
        if self.certificates is None:
            return ["--insecure"]
        (key,) = [k for k in self.certificates.node_keys if k.name == folder.name]
        roots = str(self.certificates.ca_certificate)
        return ["--root-certificates", roots, "--auth-supernode-private-key", str(key)]

    def _launch(self, name: str, command: list[str], port: int) -> None:
        home = self._home(name)
        with self._said(name).open("ab") as log:
            started = subprocess.Popen(
                [program(command[0]), *command[1:]],
                cwd=home / EMPTY,
                env=environment(home),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        found = process(started.pid)
        self.members[name] = Member(name, started.pid, found.started if found else "", port)
        replace_json(
            self.folder / RECORD, {key: asdict(member) for key, member in self.members.items()}
        )

    def _check(self, name: str, deadline: float) -> None:
        member = self.members[name]
        what = "has ended" if not member.is_alive else "does not answer"
        if not member.is_alive or time.monotonic() >= deadline:
            log = self.log(name)
            # What ends before it opens its log has only said it.
            raise SuperLinkError(
                f"{name} {what}: {_tail(log if log.exists() else self._said(name))}"
            )


def _at(port: int) -> list[str]:
    return ["--host", HOST, "--port", str(port)]


def _server_tls(certificates: Certificates) -> list[str]:
    return [
        *("--ssl-ca-certfile", str(certificates.ca_certificate)),
        *("--ssl-certfile", str(certificates.server_certificate)),
        *("--ssl-keyfile", str(certificates.server_key)),
        "--enable-supernode-auth",
    ]


def _read(folder: Path) -> dict[str, Member]:
    try:
        content: Mapping[str, Mapping[str, object]] = json.loads((folder / RECORD).read_bytes())
        return {name: Member(**member) for name, member in content.items()}  # type: ignore[arg-type]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise SuperLinkError(f"{folder / RECORD} cannot be read: {error}") from None


def _tail(log: Path) -> str:
    try:
        lines = log.read_text("utf-8", errors="replace").strip().splitlines()
    except OSError:
        return f"see {log}"
    return f"{' / '.join(lines[-LOGGED:])} (log: {log})"
