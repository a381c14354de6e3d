"""A user's best items: under a finished run on this machine, or by what a node has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from conf.build import ConfigError
from server_app.cli_common import quiet_flower
from server_app.cli_node import data_folder, existing, node_errors

if TYPE_CHECKING:
    from models.types import Tensors
    from server_app.snapshot import Checkpoint
    from strategies.base import RecStrategy

PRIVATE, PRIVATE_ALONE = "private embedding", "private embedding alone"


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
    """What the scores rest on: ``private embedding``, ``private embedding alone``, without what the
    server had for the user, ``cold start`` or ``popularity``."""
    round: int
    """Round of the shared parameters."""
    run: str

    def as_json(self) -> dict[str, object]:
        """The same as JSON can hold it."""
        items = [{"item": i, "title": title, "score": score} for i, title, score in self.items]
        about = {"user": self.user, "run": self.run, "round": self.round, "source": self.source}
        return {**about, "left_out": self.known, "items": items}


def on_node(
    node_store: Path,
    data_path: Path | None,
    user: str,
    top: int,
    steps: int | None = None,
    run_id: str | None = None,
) -> Recommendation:
    """A user's best items by what is on a node's machine; in its newest run unless one is named.

    Raises:
        StorageError: when the store has received nothing yet, or cannot be read.

    """
    from client_app.cold_start import STEPS
    from client_app.on_device import Device

    quiet_flower()
    folder = data_folder(node_store, data_path)
    with node_errors(), Device.opened(existing(node_store), folder, run_id) as device:
        found = device.suggest(user, top, steps or STEPS)
    words = "items of the user's history, those held out for evaluation too"
    return Recommendation(
        user, found.seen, words, found.items, found.source, found.round, found.run_id
    )


def recommendations(
    folder: Path, user: str | None, top: int, hide_heldout: bool = False
) -> Recommendation:
    """A user's best items under the selected round of a completed run.

    ``hide_heldout``: without the held-out test item, which otherwise may be among them.

    Raises:
        ConfigError: for a user who is not in the data.
        ServerError: when the run has not completed, or its data or states are gone.

    """
    from client_app.recommend import known_items
    from client_app.recommend import recommend as best_items
    from server_app.cli_finished import FinishedRun

    quiet_flower()
    run = FinishedRun.opened(folder)
    dataset = run.dataset
    index = _user_index(dataset.user_ids.tolist(), user)
    received, source = _received(run.strategy, run.checkpoint, folder, index)
    store = run.store(next(i for i, (_, end) in enumerate(run.shards) if index < end))
    try:
        ranked = best_items(
            run.strategy,
            {**run.checkpoint.best, **received},
            dataset,
            store,
            run.checkpoint.run_id,
            index,
            run.round,
            top,
            seed=run.config.seed,
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
    words = _left_out(run.config.protocol.validation, int(dataset.test_U[index]), known.tolist())
    return Recommendation(
        str(dataset.user_ids[index]),
        len(known),
        words,
        items,
        source,
        run.round,
        folder.name,
    )


def _received(
    strategy: RecStrategy, checkpoint: Checkpoint, folder: Path, user: int
) -> tuple[Tensors, str]:
    """What the server had for a user after the selected round, and what scores rest on."""
    from server_app.run_folder import strategy_folder

    if not strategy.personal_evaluation:
        return {}, PRIVATE
    strategy.workspace = strategy_folder(folder)
    strategy.set_shared(checkpoint.shared, checkpoint.server_state)
    try:
        had = strategy.evaluation_personal(np.array([user]), checkpoint.selection.round)
    except LookupError:
        return {}, PRIVATE_ALONE
    return had.get(user, {}), PRIVATE


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
