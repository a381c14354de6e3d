"""What papers say about a data set, as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from conf.tree import ConfigError

FOLDER = Path(__file__).parent / "claims"


@dataclass(frozen=True)
class Claims:
    """A study's figures on one data set under one protocol."""

    source: str
    dataset: str
    protocol: str
    arms: Mapping[str, Mapping[str, Any]]
    """Settings by dotted key, and ``strategy``, of each arm by its name."""
    figures: Mapping[str, Mapping[str, float]]
    """Per cent, by arm and by the name of a result's metric."""
    better: Sequence[Sequence[str]] = ()
    """Pairs of arms: the first is said to be better at every figure that both have."""
    notes: Sequence[str] = ()


def load_claims(path: Path) -> Claims:
    """The claims of a file.

    Raises:
        ConfigError: when it cannot be read or is not what a file of claims should be.

    """
    try:
        values = yaml.safe_load(path.read_text("utf-8"))
        claims = Claims(**values)
        named = {*claims.figures, *(arm for pair in claims.better for arm in pair)}
        numbers = [v for of in claims.figures.values() for v in of.values()]
    except (OSError, UnicodeError, yaml.YAMLError, TypeError, AttributeError) as error:
        why = " ".join(str(error).split())  # what yaml says has several lines
        raise ConfigError(f"{path} holds no claims: {why}") from None
    if unknown := sorted(named - claims.arms.keys()):
        raise ConfigError(f"{path}: there is no arm {unknown[0]!r}")
    if not all(isinstance(number, int | float) and 0 <= number <= 100 for number in numbers):
        raise ConfigError(f"{path}: figures must be numbers in per cent")
    if not all(len(pair) == 2 for pair in claims.better):
        raise ConfigError(f"{path}: better must be pairs of arms")
    return claims


def known_claims() -> list[Claims]:
    """Those that come with the project."""
    return [load_claims(path) for path in sorted(FOLDER.glob("*.yaml"))]
