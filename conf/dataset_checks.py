"""Data sets that a configuration cannot have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath

from conf.schema import DatasetConfig

COLUMN_MEANINGS = ("user", "item", "rating", "timestamp", "_")


def dataset_problems(dataset: DatasetConfig, grid: str) -> Iterator[str]:
    """What is wrong with where the data come from and what their columns are, a line each."""
    if dataset.synthetic is not None:
        yield from _synthetic(dataset)
        return
    # The nodes of a deployment have data of their own.
    if dataset.path is None and dataset.fetch is None and grid != "deployment":
        yield f"dataset.path is required for dataset={dataset.name}: dataset.path=/path/to/file"
    for key in ("path", "titles"):
        yield from absolute_problems(f"dataset.{key}", getattr(dataset, key))
    for digest in dataset.sha256:
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            yield f"dataset.sha256 must be 64 hexadecimal digits, got {digest!r}"
    if not _typed_header(dataset):
        yield from _columns(dataset)


def _synthetic(dataset: DatasetConfig) -> Iterator[str]:
    made = dataset.synthetic
    assert made is not None
    if dataset.path is not None:
        yield (
            f"dataset={dataset.name} is made up: leave dataset.path away, or read a file with "
            "dataset=file"
        )
    for key, least in (
        ("users", 1),
        ("items", 20),
        ("least_rows", 3),
        ("clusters", 1),
        ("seed", 0),
    ):
        if getattr(made, key) < least:
            yield f"dataset.synthetic.{key} must be at least {least}, got {getattr(made, key)}"
    if made.clusters > made.items:
        yield f"dataset.synthetic.clusters={made.clusters} are more than the {made.items} items"
    if made.median_rows < 1:
        yield f"dataset.synthetic.median_rows must be at least 1, got {made.median_rows}"
    for key in ("spread", "exponent"):
        if getattr(made, key) < 0:
            yield f"dataset.synthetic.{key} must not be negative, got {getattr(made, key)}"
    if not 0 <= made.taste < 1:
        yield f"dataset.synthetic.taste must be at least 0 and below 1, got {made.taste}"


def _typed_header(dataset: DatasetConfig) -> bool:
    """Whether the columns come from the file's own header, as far as the name tells."""
    if dataset.format == "auto":
        return dataset.path is None or dataset.path.removesuffix(".gz").endswith(".inter")
    return dataset.format == "inter"


def _columns(dataset: DatasetConfig) -> Iterator[str]:
    if not dataset.separator:
        yield "dataset.separator must not be empty"
    meanings = Counter(column.split(":", 1)[0] for column in dataset.columns)
    for meaning, count in meanings.items():
        if meaning not in COLUMN_MEANINGS:
            allowed = ", ".join(COLUMN_MEANINGS)
            yield f"dataset.columns: {meaning!r} is not allowed; choose from {allowed}"
        if meaning != "_" and count > 1:
            yield f"dataset.columns names {meaning} {count} times"
    if not dataset.header and any(":" in column for column in dataset.columns):
        yield "dataset.columns picks by name (user:NAME): this needs dataset.header=true"
    for needed in ("user", "item"):
        if needed not in meanings:
            yield f"dataset.columns must contain {needed}, got {list(dataset.columns)}"
    if dataset.time == "timestamp" and "timestamp" not in meanings:
        yield (
            "dataset.time=timestamp needs a timestamp in dataset.columns; without one choose "
            "dataset.time=file_order or dataset.time=random"
        )
    if dataset.rating_threshold is not None and "rating" not in meanings:
        yield "dataset.rating_threshold needs a rating in dataset.columns"


def absolute_problems(key: str, path: str | None) -> Iterator[str]:
    """Nodes have working folders of their own, so a relative path would be another's."""
    if path is not None and not PurePath(path).is_absolute():
        yield f"{key} must be an absolute path, got {path!r}"
