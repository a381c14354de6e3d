"""``fedrecgel supernode`` and ``superlink``: Flower's programs, set up for this application."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Options of Flower's programs are theirs to read, ``--help`` too."""
DEFAULTS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
"""What these programs get unless the environment says otherwise: no calls home, no packages
fetched at run time, and new work looked for ten times a second."""


def supernode(
    context: typer.Context,
    cold: Annotated[
        bool, typer.Option("--cold", help="Start every ClientApp process from nothing.")
    ] = False,
) -> None:
    """Run flower-supernode with the given options; messages are answered without start-up.

    Flower starts a process for each message. Here it is forked from one that has torch and
    Flower imported (on Linux; --cold turns that off). Everything else is Flower's:
    fedrecgel supernode --insecure --superlink HOST:PORT --node-config 'data-path="/data/node-000"'
    """
    from server_app.warm_start import is_possible, warmed

    env = _environment()
    if not cold and is_possible():
        env = warmed(env)
    _become("flower-supernode", context.args, env)


def superlink(context: typer.Context) -> None:
    """Run flower-superlink with the given options.

    For example: fedrecgel superlink --insecure --host 0.0.0.0 --database state.db
    """
    _become("flower-superlink", context.args, _environment())


def register(
    keys: Annotated[list[Path], typer.Argument(help="Public keys of SuperNodes (node-000.pub …).")],
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the SuperLink.")],
    root_certificates: Annotated[
        str, typer.Option(help="Certificate that signed the SuperLink's.")
    ],
) -> None:
    """Tell a SuperLink which SuperNodes it may let in; each is named after its key's file."""
    from server_app.connection import Connection
    from server_app.node_list import register as tell
    from server_app.superlink_home import connection_home

    connection = Connection.checked(superlink, root_certificates)
    for name, new in tell(connection, connection_home(connection), keys).items():
        typer.echo(f"{name}: registered{'' if new else ' before'}")


def _environment() -> dict[str, str]:
    binaries = os.path.dirname(sys.executable)  # noqa: PTH120
    path = f"{binaries}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**DEFAULTS, **os.environ, "PATH": path}


def _become(name: str, arguments: list[str], env: dict[str, str]) -> None:
    """Go on as Flower's program, in this very process: signals and exit status are its own."""
    from server_app.superlink_home import program

    os.execve(program(name), [name, *arguments], env)
