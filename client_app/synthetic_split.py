"""Preparation of the synthetic data set: made and split in blocks of users."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from client_app.candidates import to_be_drawn
from client_app.errors import DataError
from client_app.prepare import catalogue_hash, fingerprint
from client_app.split import NO_ITEM
from client_app.synthetic import BLOCK, Catalogue, draw_users, lengths, make_catalogue
from client_app.synthetic import USERS_STREAM as STREAM
from conf.tree import ProtocolConfig, SyntheticConfig
from models.rng import Role, UserStreams
from models.types import IntArray

Arrays = dict[str, npt.NDArray[Any]]


def prepare_synthetic(
    config: SyntheticConfig, protocol: ProtocolConfig, folder: Path
) -> tuple[Arrays, dict[str, Any]]:
    """Arrays and facts as ``client_app.prepare.prepare`` gives them.

    The latest interaction of a user is the test item, with ``protocol.validation`` the one
    before it the validation item. Large arrays lie in unnamed files in ``folder``, not in
    memory, until they are written.

    Raises:
        DataError: for a protocol that the data cannot serve.

    """
    _check(config, protocol)
    held = 2 if protocol.validation else 1
    lengths_U = _all_lengths(config)
    indptr = np.append(0, np.cumsum(lengths_U - held))
    arrays: Arrays = {
        "user_ids": np.arange(config.users).astype(np.str_),
        "item_ids": np.arange(config.items).astype(np.str_),
        "indptr": indptr,
        "train_items": _on_disk(folder, int(indptr[-1])),
        "test_U": np.full(config.users, NO_ITEM),
        "validation_U": np.full(config.users, NO_ITEM),
    }
    _fill(config, make_catalogue(config), arrays, protocol.validation)
    arrays |= {
        "test_candidates_UC": to_be_drawn(protocol.num_candidates),
        "validation_candidates_UC": to_be_drawn(protocol.num_candidates)
        if protocol.validation
        else np.empty((config.users, 0), dtype=np.int64),
    }
    counts = {"rows": int(lengths_U.sum()), "rows_used": int(lengths_U.sum())}
    facts = {
        "fingerprint": fingerprint(arrays),
        "catalogue": catalogue_hash(arrays["item_ids"]),
        "counts": counts,
    }
    return arrays, facts


def _check(config: SyntheticConfig, protocol: ProtocolConfig) -> None:
    if protocol.candidates == "notebook":
        raise DataError(
            "protocol.candidates=notebook repeats a draw for the paper's files; for synthetic "
            "data choose protocol=strict or protocol.candidates=derived"
        )
    if protocol.min_interactions > config.least_rows:
        raise DataError(
            f"synthetic users have {config.least_rows} interactions at least: lower "
            f"protocol.min_interactions={protocol.min_interactions} or raise "
            "dataset.synthetic.least_rows"
        )
    most = max(config.least_rows, config.items // 4)
    if config.items - most < protocol.num_candidates:
        raise DataError(
            f"{config.items} synthetic items leave a user too few for "
            f"protocol.num_candidates={protocol.num_candidates}: raise dataset.synthetic.items"
        )


def _blocks(num_users: int) -> list[IntArray]:
    return [np.arange(at, min(num_users, at + BLOCK)) for at in range(0, num_users, BLOCK)]


def _all_lengths(config: SyntheticConfig) -> IntArray:
    streams = UserStreams(config.seed, Role.SYNTHETIC, STREAM)
    return np.concatenate([lengths(config, streams, users) for users in _blocks(config.users)])


def _fill(config: SyntheticConfig, catalogue: Catalogue, arrays: Arrays, validation: bool) -> None:
    indptr = arrays["indptr"]
    for users in _blocks(config.users):
        drawn = draw_users(config, catalogue, users)
        last = drawn.starts + drawn.lengths_U - 1
        arrays["test_U"][users] = drawn.values[last]
        if validation:
            arrays["validation_U"][users] = drawn.values[last - 1]
        held = last[drawn.users] - (1 if validation else 0)
        train = np.arange(len(drawn.values)) < held
        order = np.lexsort((drawn.values[train], drawn.users[train]))
        part = slice(int(indptr[users[0]]), int(indptr[users[-1] + 1]))
        arrays["train_items"][part] = drawn.values[train][order]


def _on_disk(folder: Path, size: int) -> IntArray:
    """Room in a file that goes away with the array."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        return np.memmap(file, dtype=np.int64, mode="w+", shape=(max(1, size),))[:size]
