"""One run on a SuperLink: submit it by ``flwr run``, follow it, stop it.

Submitting goes through Flower's command line. Following goes through the client that
``flwr list`` and ``flwr log`` use, in this process: a process a poll would cost a second
of a core each time.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flwr.proto.control_pb2 import ListRunsRequest, StreamLogsRequest
from flwr.supercore.control import ControlHttpClient

from conf.tree import Config
from server_app.concurrency import fitting_workers
from server_app.connection import Connection
from server_app.control import ANSI, connected, one_line, plain_errors
from server_app.errors import SuperLinkError
from server_app.superlink_home import EMPTY, environment, program


@dataclass(frozen=True)
class Site:
    """Where runs go: a SuperLink, and the home for ``flwr`` commands to it."""

    connection: Connection
    home: Path
    simulates: bool
    """Its nodes are simulated; else they are SuperNodes that connect to it."""
    is_alive: Callable[[], bool]
    """Whether its process still runs, as far as that can be told from here."""


@dataclass(frozen=True)
class FlowerStatus:
    """What Flower says about a run."""

    status: str
    """``pending``, ``starting``, ``running`` or ``finished``."""
    sub_status: str
    """Of a finished run: ``completed``, ``failed`` or ``stopped``."""
    details: str


class FlowerRun:
    """A submitted run."""

    def __init__(self, client: ControlHttpClient, run_id: int, home: Path) -> None:
        self._client, self.run_id, self._home = client, run_id, home

    @classmethod
    @contextmanager
    def submitted(
        cls, site: Site, app: Path, overrides: Sequence[str], config: Config
    ) -> Iterator[FlowerRun]:
        """Submit ``app`` with these overrides.

        Raises:
            SuperLinkError: with Flower's message when the run is not accepted.

        """
        federation = federation_config(config) if site.simulates else None
        run_id = _submit(site.home, app, overrides, federation)
        with connected(site.connection) as client:
            yield cls(client, run_id, site.home)

    def status(self) -> FlowerStatus:
        """Where the run stands.

        Raises:
            SuperLinkError: when the SuperLink does not answer.

        """
        with plain_errors():
            reply = self._client.ListRuns(ListRunsRequest(run_id=self.run_id))
        (run,) = reply.run_dict.values()
        return FlowerStatus(run.status.status, run.status.sub_status, run.status.details)

    def log(self) -> str:
        """Everything the run has logged; complete once the run is finished."""
        request = StreamLogsRequest(run_id=self.run_id, after_timestamp=0.0)
        with plain_errors():
            parts = [reply.log_output for reply in self._client.StreamLogs(request)]
        return ANSI.sub("", "".join(parts))

    def stop(self) -> None:
        """Ask Flower to stop the run; a run that has finished stays as it is."""
        flwr(self._home, "stop", str(self.run_id), "--format", "json")


def federation_config(config: Config) -> str:
    """Flower's simulation settings: as many nodes as configured, and workers as fit.

    To Ray each worker is one of as many CPUs as there are workers, however many cores it uses.
    Ray hides GPUs from workers that ask for none, so where one is wanted they share it.
    """
    nodes = config.federation.num_nodes
    workers = fitting_workers(config)
    cores = f"num-supernodes={nodes} client-resources-num-cpus=1 init-args-num-cpus={workers}"
    return f"{cores} client-resources-num-gpus={1 / workers}" if _wants_gpu(config) else cores


def _wants_gpu(config: Config) -> bool:
    if config.engine.device == "cpu":
        return False
    import torch  # not for every command: it takes a second

    return torch.cuda.is_available()


def _submit(home: Path, app: Path, overrides: Sequence[str], federation: str | None) -> int:
    with tempfile.NamedTemporaryFile("w", suffix=".toml", dir=home, encoding="utf-8") as file:
        # A JSON string is a TOML string; on the command line quotes inside would be refused.
        file.write(f"overrides = {json.dumps(shlex.join(overrides), ensure_ascii=False)}\n")
        file.flush()
        options = ["--run-config", file.name]
        options += [] if federation is None else ["--federation-config", federation]
        output = flwr(home, "run", str(app), *options, "--format", "json")
    try:
        return int(json.loads(output[output.index("{") :])["run-id"])
    except (ValueError, KeyError, TypeError):
        raise SuperLinkError(f"flwr run was not accepted: {one_line(output)}") from None


def flwr(home: Path, *arguments: str) -> str:
    """Standard output of a ``flwr`` command in one of our homes.

    Raises:
        SuperLinkError: with Flower's message when the command fails.

    """
    done = subprocess.run(
        [program("flwr"), *arguments],
        cwd=home / EMPTY,
        env=environment(home),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        reason = one_line(done.stderr or done.stdout)
        raise SuperLinkError(f"flwr {arguments[0]} failed: {reason}")
    return done.stdout
