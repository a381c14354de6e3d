"""``fedrecgel deploy``: a whole deployment on this machine, for trying and for tests."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from client_app.errors import DataError
from conf.build import ConfigError
from conf.compose import compose
from conf.overrides import absolute_overrides
from server_app.cli_common import CONSOLE, quiet_flower
from server_app.cli_run import plan, run_plans
from server_app.errors import StorageError

if TYPE_CHECKING:  # Flower's servers take a second to import
    from server_app.deployment import Deployment

app = typer.Typer(
    name="deploy",
    help="A SuperLink and SuperNodes on this machine, each a process of its own.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

FIRST_NODES = 3
"""Where nothing is prepared and no number is given."""

Folder = Annotated[Path, typer.Option(help="Folder of the deployment: data, stores, keys, logs.")]
Nodes = Annotated[
    int | None,
    typer.Option(min=1, help="Number of SuperNodes; by default as prepared before, at first 3."),
]
Tls = Annotated[
    bool, typer.Option("--tls", help="TLS, and SuperNodes known by their keys (development CA).")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings as key=value, as for `fedrecgel run`")
]


@app.command()
def local(
    overrides: Overrides = None,
    nodes: Nodes = None,
    folder: Folder = Path("deployment"),
    tls: Tls = False,
    name: Annotated[str | None, typer.Option(help="Name of the run and of its folder.")] = None,
    resume: Annotated[
        str | None, typer.Option(help="Continue this run from its last checkpoint.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave all processes running.")] = False,
) -> None:
    """Bring a deployment up, run once, show how it stands, and take it down.

    One that was up before stays so. Data is prepared in the folder the first time, and kept there
    with the nodes' stores.
    """
    given = list(overrides or [])
    number = _number_of_nodes(folder.absolute(), nodes)
    asked = [] if resume else ["federation=deployment", f"federation.num_nodes={number}"]
    plans = plan([*asked, *given], name, resume)
    ran_before = _runs(folder.absolute())
    deployment = _up(given, folder.absolute(), number, tls)
    try:
        _show(deployment)
        run_plans(plans, deployment.connection)
    finally:
        if not keep and not ran_before:
            _down(deployment)


@app.command()
def up(
    overrides: Overrides = None,
    nodes: Nodes = None,
    folder: Folder = Path("deployment"),
    tls: Tls = False,
) -> None:
    """Start a deployment, or what of it does not run, and leave it running."""
    number = _number_of_nodes(folder.absolute(), nodes)
    deployment = _up(list(overrides or []), folder.absolute(), number, tls)
    _show(deployment)
    where = shlex.join(deployment.connection.options)
    CONSOLE.print(
        f"Run on it: fedrecgel run federation=deployment federation.num_nodes="
        f"{len(deployment.node_folders)} {where}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


@app.command()
def status(folder: Folder = Path("deployment")) -> None:
    """Show the processes of a deployment, and which SuperNodes its SuperLink sees."""
    _show(_existing(folder))


@app.command()
def down(folder: Folder = Path("deployment")) -> None:
    """End every process of a deployment; its data and stores stay."""
    _down(_existing(folder))


def _number_of_nodes(folder: Path, asked: int | None) -> int:
    from server_app.deployment import PREPARED

    return asked or len(list((folder / PREPARED).glob("node-*"))) or FIRST_NODES


def _runs(folder: Path) -> bool:
    """Whether any process of the deployment runs."""
    from server_app.deployment import RECORD, Deployment

    if not (folder / RECORD).is_file():
        return False
    return any(member.is_alive for member in Deployment(folder).members.values())


def _up(given: list[str], folder: Path, nodes: int, tls: bool) -> Deployment:
    from server_app.deployment import CERTIFICATES, PREPARED, Deployment

    quiet_flower()
    _prepare(given, folder / PREPARED, nodes)
    if tls:
        (folder / CERTIFICATES).mkdir(mode=0o700, exist_ok=True)
    deployment = Deployment(folder)
    if len(deployment.node_folders) != nodes:
        raise ConfigError(
            f"{folder} was prepared for {len(deployment.node_folders)} nodes, not {nodes}: choose "
            "another --folder, or remove it"
        )
    with CONSOLE.status(f"starting a SuperLink and {nodes} SuperNodes"):
        try:
            deployment.start()
        except BaseException:
            deployment.stop()
            raise
    return deployment


def _prepare(given: list[str], target: Path, nodes: int) -> None:
    """Write the nodes' data folders where there are none yet."""
    from client_app.data import load_dataset
    from client_app.distribute import distribute, even_sizes

    if target.is_dir():
        return
    config = compose(absolute_overrides(given, Path.cwd()))
    try:
        sizes = even_sizes(load_dataset(config).num_users, nodes)
        distribute(config, target, sizes)
    except DataError as error:
        raise StorageError(str(error)) from None


def _existing(folder: Path) -> Deployment:
    from server_app.deployment import RECORD, Deployment

    if not (folder / RECORD).is_file():
        raise ConfigError(f"there is no deployment in {folder.absolute()}")
    quiet_flower()
    return Deployment(folder.absolute())


def _show(deployment: Deployment) -> None:
    """The processes, and how many nodes the SuperLink sees."""
    table = Table("process", "state", "pid", "port", "log")
    for name, member in sorted(deployment.members.items(), key=lambda item: item[1].port):
        state = "runs" if member.is_alive else "ended"
        table.add_row(name, state, str(member.pid), str(member.port), str(deployment.log(name)))
    CONSOLE.print(table)
    if deployment.connection.is_healthy():
        online = sum(node.online for node in deployment.nodes())
        seen = f"answers, {online} of {len(deployment.node_folders)} SuperNodes online"
    else:
        seen = "does not answer"
    CONSOLE.print(f"SuperLink at {deployment.connection.address}: {seen}", highlight=False)


def _down(deployment: Deployment) -> None:
    ended = deployment.stop()
    CONSOLE.print(f"ended: {', '.join(ended) if ended else 'nothing ran'}", highlight=False)
