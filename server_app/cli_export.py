"""``fedrecgel export-items``: the item embeddings of a run, with the items' ids."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from conf.build import ConfigError
from server_app.cli_common import CONSOLE, quiet_flower, run_folder
from server_app.cli_node import node_errors
from server_app.cli_runs import Output
from server_app.errors import ServerError, StorageError

Strings = npt.NDArray[np.str_]
SUFFIXES = (".npz", ".parquet")
OWN_ITEMS = (
    "These are what all users share; under this strategy each is ranked by item parameters of its "
    "own as well, which stay on its node or wait for it."
)


def export_items(
    run: Annotated[str, typer.Option(help="Name of a run, or its folder.")],
    out: Annotated[Path, typer.Option(help="File to write: .npz or .parquet.")],
    catalogue: Annotated[
        Path | None,
        typer.Option(help="catalogue.tsv, where the run's data is not on this machine."),
    ] = None,
    output: Output = None,
) -> None:
    """Write the item embeddings of the selected round, with ids and titles where known.

    npz: item_id (I,), title (I,) and one (I, D) array for each item table. parquet: a row an
    item, each table a column of lists (needs pyarrow).
    """
    from server_app.initial_items import item_tables

    quiet_flower()
    _check_target(out)
    folder = run_folder(run, output)
    tables, server_round, strategy = item_tables(folder)
    ids, titles = _items(folder, catalogue)
    if {len(table) for table in tables.values()} != {len(ids)}:
        raise ServerError(
            f"the catalogue has {len(ids)} items, the run's tables have "
            f"{', '.join(str(len(table)) for table in tables.values())}"
        )
    columns: dict[str, npt.NDArray[Any]] = {"item_id": ids, "title": titles}
    columns |= {name: table.numpy() for name, table in tables.items()}
    _write(out, columns)
    shapes = ", ".join(f"{name} {tuple(table.shape)}" for name, table in tables.items())
    CONSOLE.print(
        f"{len(ids)} items of round {server_round}: {shapes} in {out}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if strategy.has_own_item_parameters:
        CONSOLE.print(OWN_ITEMS, markup=False, highlight=False, soft_wrap=True)


def _items(folder: Path, catalogue: Path | None) -> tuple[Strings, Strings]:
    """Ids and titles by item index: from a catalogue, or from the run's data."""
    from client_app.data import load_dataset
    from client_app.node_folder import read_catalogue
    from conf.tree import from_mapping
    from server_app.run_folder import read_config

    with node_errors():
        if catalogue is not None:
            return read_catalogue(catalogue.absolute())
        config = from_mapping(read_config(folder))
        if config.federation.grid == "deployment":
            raise ConfigError(
                "the data of this run is on its nodes: name the catalogue that `fedrecgel "
                "prepare` wrote, --catalogue prepared/catalogue.tsv"
            )
        data = load_dataset(config)
    titles = np.full(data.num_items, "") if data.titles is None else data.titles
    return data.item_ids, titles


def _check_target(out: Path) -> None:
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"--out must end with {' or '.join(SUFFIXES)}, got {out}")
    if out.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(
            "parquet needs pyarrow: install the extra, pip install 'fedrecgel[parquet]', or write "
            ".npz"
        )
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {out.absolute().parent}")


def _write(out: Path, columns: dict[str, npt.NDArray[Any]]) -> None:
    """Write the file whole or not at all."""
    unfinished = out.with_name(f".{out.name}.unfinished{out.suffix}")
    try:
        if out.suffix == ".npz":
            with unfinished.open("wb") as file:
                np.savez(file, **columns)  # type: ignore[arg-type]
        else:
            import pandas as pd

            lists = {n: list(c) if c.ndim > 1 else c for n, c in columns.items()}
            pd.DataFrame(lists).to_parquet(unfinished, index=False)
        unfinished.replace(out)
    except OSError as error:
        raise StorageError(f"{out}: cannot be written ({error.strerror})") from None
    finally:
        unfinished.unlink(missing_ok=True)
