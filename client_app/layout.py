"""Where user, item, rating and timestamp stand in a line, from the dataset's description."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from client_app.errors import DataError
from conf.tree import DatasetConfig

SEPARATORS = {
    "comma": ",",
    "tab": "\t",
    "\\t": "\t",
    "space": " ",
    "semicolon": ";",
    "pipe": "|",
}
MEANINGS = ("user", "item", "rating", "timestamp")
INTER_NAMES = {
    "user": "user_id",
    "item": "item_id",
    "rating": "rating",
    "timestamp": "timestamp",
}
DEFAULTS = DatasetConfig(name="")
TYPED_NAME = re.compile(r".+:(token|float|token_seq|float_seq)")


@dataclass(frozen=True)
class Layout:
    """How to cut a line: ``positions`` maps each meaning to its field, counted from 0."""

    separator: str
    header: bool
    num_fields: int
    positions: Mapping[str, int]

    @property
    def quoted(self) -> bool:
        """Fields may stand in double quotes; not so where white space separates."""
        return not self.separator.isspace()


def layout_of(config: DatasetConfig, text: str, path: str) -> Layout:
    """The layout that the description, or the typed header, gives.

    Raises:
        DataError: a named column is absent, or what the description needs is not there.

    """
    first = text.split("\n", 1)[0].rstrip("\r")
    if is_inter(config, first, path):
        _check_ignored(config, path)
        names = [name.split(":", 1)[0] for name in first.split("\t")]
        layout = Layout("\t", True, len(names), _named(config, names, path, INTER_NAMES))
    else:
        layout = _delimited(config, first, path)
    _check_needs(config, layout, path)
    return layout


def is_inter(config: DatasetConfig, first_line: str, path: str) -> bool:
    """Whether this is a RecBole atomic file, with ``format=auto`` by suffix or typed header."""
    if config.format != "auto":
        return config.format == "inter"
    typed = all(TYPED_NAME.fullmatch(name) for name in first_line.split("\t"))
    return typed or path.removesuffix(".gz").endswith(".inter")


def _check_ignored(config: DatasetConfig, path: str) -> None:
    """Refuse settings that a typed header would overrule; a default cannot be told from none."""
    if config.separator not in (DEFAULTS.separator, "tab", "\t", "\\t"):
        raise DataError(
            f"{path}: dataset.separator={config.separator} does not apply: a file with a typed "
            "header is separated by tabs; drop it, or set dataset.format=delimited"
        )
    positional = not any(":" in column for column in config.columns)
    if positional and config.columns != DEFAULTS.columns:
        raise DataError(
            f"{path}: dataset.columns=[{','.join(config.columns)}] does not apply: a file with a "
            "typed header names its columns; pick them by name, dataset.columns=[user:NAME,"
            "item:NAME], or set dataset.format=delimited dataset.header=true"
        )


def _delimited(config: DatasetConfig, first_line: str, path: str) -> Layout:
    separator = SEPARATORS.get(config.separator, config.separator)
    if not any(":" in column for column in config.columns):
        positions = {c: at for at, c in enumerate(config.columns) if c in MEANINGS}
        return Layout(separator, config.header, len(config.columns), positions)
    if not config.header:
        raise DataError(f"{path}: dataset.columns picks by name: this needs dataset.header=true")
    names = [name.strip().strip('"') for name in first_line.split(separator)]
    return Layout(separator, True, len(names), _named(config, names, path, {}))


def _named(
    config: DatasetConfig, names: Sequence[str], path: str, usual: Mapping[str, str]
) -> dict[str, int]:
    """Positions by the header's names; ``usual`` names are taken where they are present."""
    chosen = dict(column.split(":", 1) for column in config.columns if ":" in column)
    positions = {m: names.index(name) for m, name in usual.items() if name in names}
    for meaning, name in chosen.items():
        wanted = name.split(":", 1)[0] if usual else name
        if wanted not in names:
            raise DataError(f"{path}:1: no column {name!r} in the header: {', '.join(names)}")
        positions[meaning] = names.index(wanted)
    return positions


def _check_needs(config: DatasetConfig, layout: Layout, path: str) -> None:
    for meaning in ("user", "item"):
        if meaning not in layout.positions:
            raise DataError(f"{path}: no {meaning} column; name it: dataset.columns={_HOW}")
    if config.time == "timestamp" and "timestamp" not in layout.positions:
        raise DataError(
            f"{path}: no timestamp column; without one set dataset.time=file_order or random"
        )
    if config.rating_threshold is not None and "rating" not in layout.positions:
        raise DataError(f"{path}: dataset.rating_threshold needs a rating column")


_HOW = "[user,item,rating,timestamp] by position or [user:NAME,item:NAME] by header"
