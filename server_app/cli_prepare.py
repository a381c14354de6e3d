"""``fedrecgel prepare``: a data folder for each node of a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from client_app.errors import DataError
from conf.build import ConfigError
from conf.compose import compose
from conf.overrides import absolute_overrides
from conf.tree import Config
from server_app.cli_common import CONSOLE, quiet_flower
from server_app.errors import StorageError


def prepare(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Settings of dataset and protocol, for example dataset=ml_100k"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write; it must not exist.")] = Path(
        "prepared"
    ),
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Number of nodes, with about equally many users each.")
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(help="Users of each node, for example 1,1,900 (not with --nodes).")
    ] = None,
) -> None:
    """Split a data set into a folder for each node, to be copied to its machine.

    A folder holds the rows of its users with raw ids, and the catalogue, which is the same on
    all nodes. A run with these nodes needs the same dataset and protocol.
    """
    from client_app.distribute import distribute

    quiet_flower()
    config = compose(absolute_overrides(list(overrides or []), Path.cwd()))
    try:
        written = distribute(config, out.absolute(), _sizes(config, nodes, sizes))
    except DataError as error:
        raise StorageError(str(error)) from None
    table = Table("node folder", "users", "interactions")
    for node in written:
        table.add_row(str(node.folder), str(node.num_users), str(node.num_rows))
    CONSOLE.print(table)
    CONSOLE.print(
        f"On each machine: --node-config 'data-path=\"{written[0].folder}\"' (its own folder)",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _sizes(config: Config, nodes: int | None, sizes: str | None) -> list[int]:
    from client_app.data import load_dataset
    from client_app.distribute import even_sizes

    if (nodes is None) == (sizes is None):
        raise ConfigError("give either --nodes, or --sizes with the users of each node")
    if nodes is not None:
        return even_sizes(load_dataset(config).num_users, nodes)
    assert sizes is not None
    parts = [part.strip() for part in sizes.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--sizes must be whole numbers such as 1,1,900, got {sizes!r}")
    return [int(part) for part in parts]
