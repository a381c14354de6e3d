"""Strict building of dataclasses from plain values; every problem is one line with the key."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Built = TypeVar("Built")


class ConfigError(ValueError):
    """A problem of the configuration, as one line that names the key and what is allowed."""


def build(schema: type[Built], values: Any, where: str) -> Built:
    """Make ``schema`` from a mapping; ``where`` is the dotted path of the section ('' at the root).

    Raises:
        ConfigError: unknown or missing key, wrong type, value outside a ``Literal``, or the
            dataclass's own check.

    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: expected a section with keys, got {_shown(values)}")
    hints = get_type_hints(schema)
    fields = [f for f in dataclasses.fields(schema) if f.init]  # type: ignore[arg-type]
    unknown_keys(values, [key_of(f.name) for f in fields], where, _inside(hints))
    settings = {}
    for field in fields:
        key = key_of(field.name)
        if key in values:
            settings[field.name] = convert(hints[field.name], values[key], _join(where, key))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{_join(where, key)} is required")
    try:
        return schema(**settings)
    except ValueError as error:
        names_field = str(error).split(" ")[0] in settings
        raise ConfigError(f"{where}{'.' if names_field else ': '}{error}") from None


def key_of(name: str) -> str:
    """The key of a field: ``async`` is a word of Python's, so its field is ``async_``."""
    return name.removesuffix("_")


def plain(value: Any) -> dict[str, Any]:
    """A dataclass as the mapping of keys that :func:`build` makes it from."""
    return dataclasses.asdict(value, dict_factory=_keyed)


def _keyed(items: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return {key_of(name): value for name, value in items}


def convert(hint: Any, value: Any, key: str) -> Any:
    """``value`` as the type of ``hint``, without guessing: "3" is not an int, True is not 1."""
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else build(hint, value, key)  # type: ignore[arg-type]
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _optional(hint, value, key)
    if origin is Literal:
        return _choice(get_args(hint), value, key)
    if origin is tuple:
        return _sequence(get_args(hint)[0], value, key)
    return _scalar(hint, value, key)


def unknown_keys(
    values: Iterable[str], known: Sequence[str], where: str, inside: Mapping[str, str] | None = None
) -> None:
    """Raise ConfigError for the first key that is not in ``known``.

    ``inside`` has keys of the sections among ``known``, with the section before them: what a
    setting is now called that was there before the section.
    """
    names = {**(inside or {}), **{name: name for name in known}}
    for key in values:
        if key not in known:
            close = difflib.get_close_matches(str(key), names, n=1)
            hint = f"; did you mean {_join(where, names[close[0]])}?" if close else ""
            raise ConfigError(
                f"unknown key {_join(where, str(key))}{hint} (allowed: {', '.join(sorted(known))})"
            )


def import_target(path: Any, package: str, key: str) -> type:
    """The class at ``package.module.Class``; nothing outside ``package`` is imported."""
    parts = str(path).split(".")
    if not isinstance(path, str) or len(parts) < 3 or parts[0] != package:
        raise ConfigError(f"{key}: {_shown(path)} must be a class of the {package} package")
    module, name = ".".join(parts[:-1]), parts[-1]
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{key}: cannot import {path}: {error}") from None
    if not isinstance(found, type):
        raise ConfigError(f"{key}: {module} has no class {name}")
    return found


def target_of(cls: type) -> str:
    """The ``_target_`` of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _inside(hints: Mapping[str, Any]) -> dict[str, str]:
    """Keys of sections that are dataclasses, with the section before them."""
    sections = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    return {
        field.name: f"{name}.{field.name}"
        for name, hint in sections.items()
        for field in dataclasses.fields(hint)
        if field.init
    }


def _optional(hint: Any, value: Any, key: str) -> Any:
    if value is None:
        return None
    (inner,) = [arg for arg in get_args(hint) if arg is not type(None)]
    return convert(inner, value, key)


def _choice(allowed: tuple[Any, ...], value: Any, key: str) -> Any:
    if not any(value == choice and type(value) is type(choice) for choice in allowed):
        names = ", ".join(map(str, allowed))
        raise ConfigError(f"{key}: {_shown(value)} is not allowed; choose one of {names}")
    return value


def _sequence(inner: Any, value: Any, key: str) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{key}: expected a list such as [a,b], got {_shown(value)}")
    return tuple(convert(inner, item, f"{key}[{i}]") for i, item in enumerate(value))


def _scalar(hint: Any, value: Any, key: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{key}: expected {_NAMES[hint]}, got {_shown(value)}")
    if hint is float and not math.isfinite(value):
        raise ConfigError(f"{key}: expected a finite number, got {value}")
    return value


_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
}


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
