"""``fedrecgel recommend``: one user's list, from a finished run here or on a node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from conf.build import ConfigError
from server_app.cli_common import CONSOLE, run_folder
from server_app.cli_recommendations import (
    PRIVATE_ALONE,
    Recommendation,
    on_node,
    recommendations,
)
from server_app.cli_runs import Output

BASES = {
    PRIVATE_ALONE: "; without the server's part for the user, which only the last round has",
    "cold start": "; the user was not trained: a private state was fitted here and now",
    "popularity": "; the user has no history here or was forgotten: these are the most popular",
}
"""What is said of a list that does not rest on all that a trained user is ranked with."""


def recommend(
    user: Annotated[str, typer.Option(help="The user's id as in the data file.")],
    run: Annotated[
        str | None,
        typer.Option(
            help="Name of a completed run here, or its folder; with --node-store the id of one of "
            "the node's runs, by default its newest."
        ),
    ] = None,
    node_store: Annotated[
        Path | None, typer.Option(help="Store of a node (store.sqlite): recommend from it.")
    ] = None,
    data_path: Annotated[
        Path | None, typer.Option(help="The node's data folder; by default that of its store.")
    ] = None,
    top: Annotated[int, typer.Option("--top", "--k", min=1, help="Length of the list.")] = 10,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Local rounds for a user of a node who was not trained; by default 30.",
        ),
    ] = None,
    hide_heldout: Annotated[
        bool, typer.Option("--hide-heldout", help="Leave the held-out test item out as well.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: Output = None,
) -> None:
    """Print one user's best items, from a finished run here or on a node's own machine.

    From a run: without the items of the training and validation rows. The held-out test item,
    which the model has not seen as the user's, may appear: a good model ranks it high;
    --hide-heldout leaves it out too.

    On a node (--node-store): without a network, by the user's private state and the shared
    parameters that the node received last, without any item of the user's history. A user who was
    not trained gets a private state by local steps now; one without a history what is popular.
    """
    if node_store is not None:
        _refuse("--node-store", {"--hide-heldout": hide_heldout, "--output": output})
        found = on_node(node_store, data_path, user, top, steps, run)
    elif run is not None:
        _refuse("--run", {"--data-path": data_path, "--steps": steps})
        found = recommendations(run_folder(run, output), user, top, hide_heldout)
    else:
        raise ConfigError("give --run or --node-store")
    if as_json:
        typer.echo(json.dumps(found.as_json(), ensure_ascii=False))
    else:
        _print(found)


def _refuse(form: str, options: Mapping[str, object]) -> None:
    """Refuse options that say nothing in this form of the command."""
    for name, value in options.items():
        if value not in (None, False):
            raise ConfigError(f"{name} does not go with recommending from {form}")


def print_recommendations(folder: Path, user: str | None, top: int) -> None:
    """Print a user's list from a finished run; the first user's when none is named."""
    _print(recommendations(folder, user, top))


def _print(found: Recommendation) -> None:
    heading = f"Top {len(found.items)} for user {found.user}, without {found.known} "
    heading += f"{found.left_out}{BASES.get(found.source, '')}"
    CONSOLE.print(heading, markup=False, highlight=False, soft_wrap=True)
    table = Table()
    table.add_column("rank", justify="right")
    table.add_column("item")
    table.add_column("score", justify="right")
    titled = any(title for _, title, _ in found.items)
    for rank, (item, title, score) in enumerate(found.items, start=1):
        table.add_row(str(rank), f"{title or '?'} ({item})" if titled else item, f"{score:.3f}")
    CONSOLE.print(table)
