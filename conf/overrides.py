"""Overrides as text: relative paths made absolute, a whole tree written as overrides.

A run does not start in the folder of the person who typed the paths: a SuperLink keeps its
own working folder. So they are resolved before the run is submitted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PATH_KEYS = ("dataset.path", "dataset.titles", "strategy.key_folder", "output", "cache")


def default_runs(otherwise: Path) -> str:
    """Root of run folders where ``output`` is empty: ``FEDRECGEL_RUNS``, else ``otherwise``."""
    return str(Path(os.environ.get("FEDRECGEL_RUNS") or otherwise).expanduser().absolute())


def absolute_overrides(overrides: Sequence[str], folder: Path) -> list[str]:
    """The overrides with relative paths resolved against ``folder`` and ``~`` expanded."""
    return [_absolute(override, folder) for override in overrides]


def assignment(key: str, value: str) -> str:
    """``key='value'`` so that Hydra reads exactly ``value``, whatever characters it holds."""
    return f"{key}={quoted(value)}"


def quoted(text: str) -> str:
    """A text in quotes of Hydra's grammar."""
    escaped = re.sub(r"(\\*)(?='|$)", lambda found: found[1] * 2, text).replace("'", "\\'")
    return f"'{escaped}'"


def as_overrides(mapping: Mapping[str, Any]) -> list[str]:
    """Overrides that compose to the tree of ``mapping`` (``conf.tree.to_mapping``)."""
    choices = [f"{group}={mapping[f'{group}_name']}" for group in ("strategy", "model")]
    leaves = {k: v for k, v in mapping.items() if k not in ("strategy_name", "model_name")}
    return choices + [f"{key}={_literal(value)}" for key, value in _leaves(leaves, "")]


def _leaves(mapping: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        elif key != "_target_":
            yield prefix + key, value


def _literal(value: Any) -> str:
    """A value in Hydra's grammar; text is quoted, so that "3" stays a text."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_literal, value))}]"
    return json.dumps(value)


def _absolute(override: str, folder: Path) -> str:
    key, separator, value = override.partition("=")
    name = key.lstrip("+")
    value = _unquoted(value)
    if not separator or name not in PATH_KEYS or value in ("", "null"):
        return override
    return assignment(name, os.path.normpath(folder / Path(value).expanduser()))


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1].replace(f"\\{value[0]}", value[0])
    return value
