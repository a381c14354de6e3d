"""From a data file to the arrays of a :class:`client_app.data.Dataset`."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from client_app.candidates import TEST_STREAM, VALIDATION_STREAM, derived, notebook
from client_app.errors import DataError
from client_app.files import decode, read_bytes
from client_app.interactions import Strings, parse
from client_app.split import Split, split
from conf.tree import DatasetConfig, ProtocolConfig
from models.types import IntArray

log = logging.getLogger(__name__)


def prepare(
    path: str, titles: str | None, dataset: DatasetConfig, protocol: ProtocolConfig
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """Read, split and draw candidates. Returns arrays by name, and facts: hashes and counts.

    Raises:
        DataError: for anything wrong with the file, or a protocol it cannot serve.

    """
    parts = split(parse(read_bytes(path), dataset, path), protocol, dataset.name)
    test, validation = _candidates(parts, protocol)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "user_ids": parts.user_ids,
        "item_ids": parts.item_ids,
        "indptr": parts.indptr,
        "train_items": parts.train_items,
        "test_U": parts.test_U,
        "validation_U": parts.validation_U,
        "test_candidates_UC": test,
        "validation_candidates_UC": validation,
    }
    if titles is not None:
        arrays["titles"] = read_titles(titles, parts.item_ids, dataset.encoding)
    facts = {
        "fingerprint": fingerprint(arrays),
        "catalogue": catalogue_hash(parts.item_ids),
        "counts": dict(parts.counts),
    }
    _tell(dataset.name, parts.counts, protocol)
    return arrays, facts


def _candidates(parts: Split, protocol: ProtocolConfig) -> tuple[IntArray, IntArray]:
    size = protocol.num_candidates
    if protocol.candidates == "notebook":
        test = notebook(parts, size)
    else:
        test = derived(parts, size, TEST_STREAM)
    if protocol.validation:
        return test, derived(parts, size, VALIDATION_STREAM)
    return test, np.empty((len(parts.user_ids), 0), dtype=np.int64)


def fingerprint(arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """Hash of names, types, shapes and content of all arrays."""
    total = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        if array.size:
            total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def catalogue_hash(item_ids: Strings) -> str:
    """Hash of the item ids in order: equal hashes mean equal item indices."""
    return hashlib.sha256("\n".join(item_ids.tolist()).encode()).hexdigest()


def read_titles(path: str, item_ids: Strings, encoding: str) -> Strings:
    """Titles by item index from a RecBole ``.item`` file, '' for an item it does not have.

    The title is the column with ``title`` or ``name`` in its name.

    Raises:
        DataError: without such columns, or for a line that is too short.

    """
    lines = decode(read_bytes(path), encoding, path).replace("\r\n", "\n").split("\n")
    names = [name.split(":", 1)[0] for name in lines[0].split("\t")]
    shown = [at for at, name in enumerate(names) if "title" in name or "name" in name]
    if "item_id" not in names or not shown:
        raise DataError(f"{path}:1: needs item_id and a column with title or name in its name")
    titles = {}
    for number, line in enumerate(lines[1:], start=2):
        fields = line.split("\t")
        if len(fields) == len(names):
            titles[fields[names.index("item_id")]] = fields[shown[0]]
        elif line.strip():
            raise DataError(f"{path}:{number}: {len(fields)} fields, expected {len(names)}")
    return np.array([titles.get(str(item), "") for item in item_ids], dtype=np.str_)


def _tell(name: str, counts: Mapping[str, int], protocol: ProtocolConfig) -> None:
    log.info("prepared %s under protocol=%s: %s", name, protocol.name, dict(counts))
    if counts["bad_rows"]:
        log.warning("%s: %d bad rows were left out", name, counts["bad_rows"])
    if counts["repeated_rows"]:
        log.warning(
            "%s: %d rows repeat a (user, item) pair; protocol.duplicates=%s",
            name,
            counts["repeated_rows"],
            protocol.duplicates,
        )
