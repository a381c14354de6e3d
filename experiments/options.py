"""Settings told by the name of the option that has them: ``devices=phones``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any

from conf.compose import compose, options
from conf.tree import BY_TARGET, ConfigError, to_mapping

NONE = "none"


def with_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted settings with ``attack``, ``defence`` and ``devices`` by the names of their options.

    What an option says is left out where it is said as in its yaml; other settings stay.
    """
    found = dict(settings)
    for group in BY_TARGET:
        inner = {k: v for k, v in settings.items() if k.startswith(f"{group}.")}
        target = inner.get(f"{group}._target_")
        name = NONE if target is None else _closest(group, inner)
        usual = {} if name == NONE else _values(group, name)
        found = {k: v for k, v in found.items() if k not in inner or usual.get(k) != v}
        found[group] = name
    return found


def _closest(group: str, inner: Mapping[str, Any]) -> str:
    """The option of the same class with the fewest other values; the first by name of several."""
    target = f"{group}._target_"
    apart = {
        name: sum(values.get(key) != value for key, value in inner.items())
        for name in options(group)
        if (values := _values(group, name)).get(target) == inner[target]
    }
    return min(apart, key=lambda name: (apart[name], name)) if apart else str(inner[target])


@cache
def _values(group: str, name: str) -> Mapping[str, Any]:
    """By dotted key what the option sets; nothing for one that cannot be had by itself."""
    try:
        config = compose([f"{group}={name}"])
    except ConfigError:
        return {}
    section = to_mapping(config)[group]
    assert not dataclasses.is_dataclass(section)
    return {f"{group}.{key}": _plain(value) for key, value in section.items()}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
