"""Commands on a node's own machine: forget, export, import, doctor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from conf.build import ConfigError
from server_app.cli_common import CONSOLE
from server_app.errors import StorageError

NodeStore = Annotated[Path, typer.Option(help="The node's store (store.sqlite).")]
DataPath = Annotated[
    Path | None, typer.Option(help="The node's data folder; by default that of the store.")
]


def forget(
    node_store: NodeStore,
    user: Annotated[str, typer.Option(help="The user's id as in the node's data.")],
    data_path: DataPath = None,
) -> None:
    """Remove a user's private state from a node; the user takes no part any more.

    The bytes are cleared from the file. The user's interactions stay in interactions.inter, which
    is yours to edit. What went into shared parameters before cannot be taken back out.
    """
    from client_app.node_folder import read_shard, read_users
    from client_app.user_store import UserStore

    folder = data_folder(node_store, data_path)
    with node_errors():
        indices, ids = read_users(folder)
        rows = (ids == user).nonzero()[0]
        if not len(rows):
            raise ConfigError(f"user {user!r} is not among the users of {folder}")
        store = UserStore(existing(node_store), read_shard(folder).shard_key)
        removed = store.forget(int(indices[rows[0]]))
        store.close()
    CONSOLE.print(f"user {user} is forgotten: {removed} rows removed", markup=False)


def export(
    node_store: NodeStore,
    out: Annotated[Path, typer.Option(help="File to write; it must not exist.")],
) -> None:
    """Write a consistent copy of a node's store, also while the node works."""
    from client_app.user_store import UserStore

    with node_errors():
        store = UserStore(existing(node_store), owner_of(node_store))
        try:
            store.export(out.absolute())
        finally:
            store.close()
    CONSOLE.print(f"written: {out.absolute()}", markup=False, highlight=False, soft_wrap=True)


def import_store(
    file: Annotated[Path, typer.Argument(help="A file that `fedrecgel export` wrote.")],
    node_store: NodeStore,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a store that is there already.")
    ] = False,
) -> None:
    """Put an exported store in place; it is checked first. The node must not run meanwhile."""
    from client_app.transfer import install

    with node_errors():
        install(existing(file), node_store.absolute(), replace=force)
    CONSOLE.print(f"in place: {node_store.absolute()}", markup=False, highlight=False)


def doctor(
    store: Annotated[list[Path], typer.Option(help="A store to check; may be given again.")],
) -> None:
    """Check stores, running nodes' too, without changing them: a line each."""
    from client_app.doctor import examine

    broken = 0
    for path in store:
        report = examine(path)
        broken += bool(report.problems)
        CONSOLE.print(str(report), markup=False, highlight=False, soft_wrap=True)
    if broken:
        raise StorageError(f"{broken} of {len(store)} stores are broken")


def data_folder(node_store: Path, given: Path | None) -> Path:
    """The node's data folder: as given, else the one that the store is in.

    Raises:
        ConfigError: when it is not a node's.

    """
    from client_app.node_folder import SHARD, is_node_folder

    folder = (given or node_store.absolute().parent).absolute()
    if not is_node_folder(folder):
        raise ConfigError(f"{folder} is not a node's data folder (no {SHARD}): set --data-path")
    return folder


def existing(path: Path) -> Path:
    """The absolute path of a file that is there.

    Raises:
        ConfigError: when it is not.

    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path.absolute()}")
    return path.absolute()


def owner_of(node_store: Path) -> str:
    """The shard key that a store belongs to."""
    from client_app.store_reading import owner_of as recorded

    return recorded(existing(node_store))


@contextmanager
def node_errors() -> Iterator[None]:
    """Errors of a node's files as one line of this command's."""
    from client_app.errors import DataError
    from client_app.store_file import StoreError

    try:
        yield
    except (DataError, StoreError) as error:
        raise StorageError(str(error)) from None
