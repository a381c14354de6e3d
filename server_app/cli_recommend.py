"""``fedrecgel recommend``: one user's list from a finished run on this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from conf.build import ConfigError
from server_app.cli_common import CONSOLE, quiet_flower, run_folder
from server_app.cli_node import data_folder, existing, node_errors
from server_app.cli_runs import Output
from server_app.errors import ServerError


@dataclass(frozen=True)
class Recommendation:
    """A user's best items, best first."""

    user: str
    """Raw id."""
    known: int
    """Distinct items of the user that are left out."""
    left_out: str
    """What these are and what may yet appear, in words that follow the number."""
    items: list[tuple[str, str | None, float]]
    """Raw id, title if there is one, score."""
    source: str
    """What the scores rest on: ``private embedding``, ``cold start`` or ``popularity``."""
    round: int
    """Round of the shared parameters."""
    run: str

    def as_json(self) -> dict[str, object]:
        """The same as JSON can hold it."""
        items = [{"item": i, "title": title, "score": score} for i, title, score in self.items]
        about = {"user": self.user, "run": self.run, "round": self.round, "source": self.source}
        return {**about, "left_out": self.known, "items": items}


BASES = {
    "cold start": "; the user was not trained: a private state was fitted here and now",
    "popularity": "; the user has no history here: these are the most popular items",
}
"""What is said of a list that does not rest on a trained private state."""


def recommend(
    user: Annotated[str, typer.Option(help="The user's id as in the data file.")],
    run: Annotated[
        str | None, typer.Option(help="Name of a completed run here, or its folder.")
    ] = None,
    node_store: Annotated[
        Path | None, typer.Option(help="Store of a node (store.sqlite), in place of --run.")
    ] = None,
    data_path: Annotated[
        Path | None, typer.Option(help="The node's data folder; by default that of its store.")
    ] = None,
    top: Annotated[int, typer.Option("--top", "--k", min=1, help="Length of the list.")] = 10,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Local steps for a user of a node who was not trained."),
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
    if (run is None) == (node_store is None):
        raise ConfigError("give either --run or --node-store")
    if run is not None:
        found = recommendations(run_folder(run, output), user, top, hide_heldout)
    else:
        assert node_store is not None
        found = on_node(node_store, data_path, user, top, steps)
    if as_json:
        typer.echo(json.dumps(found.as_json(), ensure_ascii=False))
    else:
        _print(found)


def on_node(
    node_store: Path, data_path: Path | None, user: str, top: int, steps: int | None = None
) -> Recommendation:
    """A user's best items by what is on a node's machine.

    Raises:
        StorageError: when the store has received nothing yet, or cannot be read.

    """
    from client_app.cold_start import STEPS
    from client_app.on_device import Device

    quiet_flower()
    folder = data_folder(node_store, data_path)
    with node_errors():
        found = Device.opened(existing(node_store), folder).suggest(user, top, steps or STEPS)
    words = "items of the user's history"
    return Recommendation(
        user, found.seen, words, found.items, found.source, found.round, found.run_id
    )


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


def recommendations(
    folder: Path, user: str | None, top: int, hide_heldout: bool = False
) -> Recommendation:
    """A user's best items under the selected round of a completed run.

    ``hide_heldout``: without the held-out test item, which otherwise may be among them.

    Raises:
        ConfigError: for a user who is not in the data.
        ServerError: when the run has not completed, or its data or states are gone.

    """
    from client_app.data import load_dataset, shard_bounds
    from client_app.node_config import store_path
    from client_app.recommend import known_items
    from client_app.recommend import recommend as best_items
    from client_app.user_store import UserStore
    from conf.tree import build_strategy, from_mapping
    from server_app.checkpoint import load_checkpoint
    from server_app.results import load_result
    from server_app.run_folder import read_config

    quiet_flower()
    load_result(folder)
    config = from_mapping(read_config(folder))
    config = replace(config, output=str(folder.parent), name=folder.name)
    checkpoint = load_checkpoint(folder)
    if checkpoint.selection.round is None:
        raise ServerError(f"{folder} has no checkpoint of the selected round")
    try:
        dataset = load_dataset(config)
    except ValueError as error:
        raise ServerError(str(error)) from None
    index = _user_index(dataset.user_ids.tolist(), user)
    count = config.federation.num_nodes
    shard = next(i for i in range(count) if index < shard_bounds(dataset.num_users, i, count)[1])
    key = f"{shard:06d}-of-{count:06d}"
    store = UserStore(store_path({}, config, key), key)
    try:
        ranked = best_items(
            build_strategy(config),
            checkpoint.best,
            dataset,
            store,
            checkpoint.run_id,
            index,
            checkpoint.selection.round,
            top,
            seed=config.seed,
            hide_heldout=hide_heldout,
        )
    finally:
        store.close()
    titles = dataset.titles
    items = [
        (str(dataset.item_ids[i]), None if titles is None else str(titles[i]) or None, score)
        for i, score in ranked
    ]
    known = known_items(dataset, index, hide_heldout)
    words = _left_out(config.protocol.validation, int(dataset.test_U[index]), known.tolist())
    return Recommendation(
        str(dataset.user_ids[index]),
        len(known),
        words,
        items,
        "private embedding",
        checkpoint.selection.round,
        folder.name,
    )


def _left_out(validation: bool, test_item: int, known: list[int]) -> str:
    """Which of a user's items are left out; ``test_item`` is -1 where none is held out."""
    rows = "training and validation items" if validation else "training items"
    if test_item < 0:
        return rows
    if test_item in known:
        return f"{rows}, the held-out test item among them"
    return f"{rows} (the held-out test item may appear)"


def _user_index(user_ids: list[str], user: str | None) -> int:
    if user is None:
        return 0
    try:
        return user_ids.index(user)
    except ValueError:
        some = ", ".join(user_ids[:5])
        raise ConfigError(f"user {user!r} is not in the prepared data (ids: {some}, …)") from None
