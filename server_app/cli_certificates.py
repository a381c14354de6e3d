"""``fedrecgel certificates``: TLS and SuperNode keys for trying."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from server_app.authority import MAX_DAYS
from server_app.certificates import make, read_certificate
from server_app.cli_common import CONSOLE


def certificates(
    out: Annotated[Path, typer.Option(help="Folder for certificates and keys.")] = Path(
        "certificates"
    ),
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address of the SuperLink's machine; may be given again."),
    ] = None,
    nodes: Annotated[int, typer.Option(min=0, help="Number of SuperNode keys.")] = 3,
    days: Annotated[
        int, typer.Option(min=1, max=MAX_DAYS, help="How long new certificates are valid.")
    ] = 365,
) -> None:
    """Make a development CA, a server certificate and SuperNode keys; what is there stays.

    For trying, not for production: there the organisation's own authority signs, and each node
    makes its key on its own machine (ssh-keygen -t ecdsa -b 384).
    """
    made = make(out.absolute(), host or [], nodes, days)
    until = read_certificate(made.server_certificate).not_valid_after_utc
    for what, path in (
        ("CA certificate, for every node and client", made.ca_certificate),
        (f"server certificate, valid until {until:%Y-%m-%d}", made.server_certificate),
        ("server key", made.server_key),
        *(("SuperNode key", key) for key in made.node_keys if key.exists()),
    ):
        CONSOLE.print(f"{what}: {path}", markup=False, highlight=False, soft_wrap=True)
