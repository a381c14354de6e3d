"""Pseudo-items: items that a user does not have, trained as positives beside its own.

A user's pseudo-items are drawn once and stay: new ones every round would cancel out over rounds
and leave the user's own. They go through the same loss, with negatives of their own; rows made
of plain noise are told apart at once. This makes guessing harder and bounds nothing: no ε.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client_app.ragged import Ragged, distinct_items
from conf.tree import Config
from models.rng import Role, derive_rng
from models.types import IntArray

KEY_FILE = "pseudo_items.key"
KEY_BYTES = 32


@dataclass(frozen=True)
class PseudoItems:
    """Draws users' pseudo-items."""

    ratio: float
    stream: Callable[[int], np.random.Generator]
    """A user's generator, the same whenever it is asked for."""
    kept_free: int
    """Items that must remain to draw negatives from."""

    def mixed(
        self, train: Ragged, excluded: Ragged, users_U: IntArray, num_items: int
    ) -> tuple[Ragged, Ragged]:
        """Training items, and those never drawn as negatives, with the pseudo-items in both.

        They are drawn uniformly from what negatives are drawn from: a held-out item is no more
        and no less likely to be one than by that rule. ``ratio`` times the user's distinct
        items, rounded, as far as the catalogue has so many.
        """
        own_U = distinct_items(train, num_items).lengths_U
        drawn = [
            self._drawn(int(user), int(own), part, num_items)
            for user, own, part in zip(users_U, own_U, _parts(excluded), strict=True)
        ]
        return _joined(train, drawn, num_items), _joined(excluded, drawn, num_items)

    def _drawn(self, user: int, own: int, excluded: IntArray, num_items: int) -> IntArray:
        outside = np.delete(np.arange(num_items), excluded)
        count = min(round(self.ratio * own), max(0, len(outside) - self.kept_free))
        return self.stream(user).choice(outside, size=count, replace=False)


def pseudo_items_of(cfg: Config, store: Path, num_negatives: int) -> PseudoItems | None:
    """Those of a configuration; None without privacy=pseudo_items.

    In a simulation they follow from the seed. The server of a deployment knows that, so there
    they follow from a key that lies beside ``store`` and never leaves the node.
    """
    settings = cfg.privacy.pseudo_items
    if settings is None:
        return None
    deployed = cfg.federation.grid == "deployment"
    seed = int.from_bytes(node_key(store.parent)) if deployed else cfg.seed
    return PseudoItems(
        settings.ratio, lambda user: derive_rng(seed, Role.PSEUDO_ITEMS, user), num_negatives
    )


def node_key(folder: Path) -> bytes:
    """The folder's key, made when first asked for; readable by its owner alone.

    Raises:
        OSError: where it cannot be made or read.
        ValueError: for a file that is no key.

    """
    path = folder / KEY_FILE
    if not path.exists():
        _make(path)
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise ValueError(f"{path} has {len(key)} bytes instead of {KEY_BYTES}")
    return key


def _make(path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(os.urandom(KEY_BYTES))
        file.flush()
        os.fsync(file.fileno())
    try:
        # Unlike a rename this keeps a key that another process made meanwhile.
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()


def _parts(ragged: Ragged) -> list[IntArray]:
    return np.split(ragged.values, ragged.starts[1:])


def _joined(ragged: Ragged, added: list[IntArray], num_items: int) -> Ragged:
    """Each user's values with the added ones, ascending."""
    users = np.repeat(np.arange(len(added)), [len(items) for items in added])
    more = users * num_items + np.concatenate(added)
    keys = np.sort(np.concatenate((ragged.keys(num_items), more)))
    return Ragged.from_keys(keys, num_items, len(added))
