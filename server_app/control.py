"""The Control API of a SuperLink, through the client that ``flwr list`` uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import click
import httpx
from flwr.cli.utils import flwr_cli_exc_handler
from flwr.proto.control_pb2 import ListRunsRequest, StopRunRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from server_app.connection import Connection
from server_app.errors import SuperLinkError

ANSI = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def connected(connection: Connection) -> Iterator[ControlHttpClient]:
    """A client of this SuperLink."""
    roots = connection.root_certificates
    client = ControlHttpClient.from_server_address(
        server_address=connection.address,
        insecure=roots is None,
        root_certificates=None if roots is None else roots.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        yield client
    finally:
        client.close()


@contextmanager
def plain_errors() -> Iterator[None]:
    """Flower's exceptions as one line.

    Raises:
        SuperLinkError: when the SuperLink does not answer.

    """
    try:
        with flwr_cli_exc_handler():
            yield
    except (click.ClickException, httpx.HTTPError) as error:
        message = error.message if isinstance(error, click.ClickException) else str(error)
        raise SuperLinkError(f"the SuperLink does not answer: {one_line(message)}") from None


def stop_active_runs(connection: Connection) -> None:
    """What ``flwr stop`` asks for, for every run that is not finished.

    Raises:
        SuperLinkError: when the SuperLink does not answer.

    """
    with connected(connection) as client, plain_errors():
        for run_id, run in client.ListRuns(ListRunsRequest()).run_dict.items():
            if run.status.status != "finished":
                client.StopRun(StopRunRequest(run_id=run_id))


def one_line(text: str) -> str:
    """A message of Flower without colours and line breaks; its end, where the reason is."""
    return " ".join(ANSI.sub("", text).split())[-500:]
