"""Overrides to configuration tree: the only use of Hydra.

Hydra's own errors are several lines long and speak of its internals; they become one
line that names the key and what is allowed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, OverrideType, Sweep
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf.tree import Config, ConfigError, from_mapping

GROUPS = (
    "dataset",
    "protocol",
    "model",
    "strategy",
    "engine",
    "federation",
    "evaluation",
    "init",
    "tracking",
    "privacy",
    "attack",
    "defence",
    "devices",
)
SEVERAL = ("tracking", "privacy")
"""Groups of which a list of options may be chosen."""


def compose(overrides: Sequence[str] = ()) -> Config:
    """The checked tree of ``conf/config.yaml`` with Hydra overrides such as ``strategy=fedncf``.

    Raises:
        ConfigError: one line naming the key and the allowed values.

    """
    mapping, choices = _compose([_checked(override) for override in overrides])
    names = {"strategy_name": choices["strategy"], "model_name": choices["model"]}
    return from_mapping({**mapping, **names})


def options(group: str) -> list[str]:
    """Names that ``group=`` accepts, sorted."""
    folder = files("conf") / group
    return sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml"))


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """Overrides of each job of a product sweep in Hydra's multirun grammar.

    ``a=1,2``, ``choice(…)``, ``range(…)`` and, for groups, ``glob(…)`` stand for several values;
    an override without any of them is in every job as it is. The last one varies fastest.

    Raises:
        ConfigError: what cannot be read or enumerated, a swept key that is given twice.

    """
    parsed = [_parsed(text) for text in overrides]
    keys = [override.key_or_group for override in parsed]
    for override, text in zip(parsed, overrides, strict=True):
        if override.is_sweep_override() and keys.count(override.key_or_group) > 1:
            raise ConfigError(f"{text}: {override.key_or_group} is given twice in one sweep")
    alternatives = map(_alternatives, parsed, overrides)
    return [list(job) for job in itertools.product(*alternatives)]


def _alternatives(override: Override, text: str) -> list[str]:
    """The single overrides that one stands for, in the order of writing."""
    if not override.is_sweep_override():
        return [text]
    value, key = override.value(), override.get_key_element()
    if isinstance(value, Glob):
        if override.key_or_group not in (*GROUPS, "experiment"):
            raise ConfigError(f"{text}: glob() is for {', '.join(GROUPS)} and experiment")
        found = [f"{key}={name}" for name in value.filter(options(override.key_or_group))]
    elif not override.is_discrete_sweep():
        raise ConfigError(f"{text}: an interval has no values to run; use choice() or range()")
    elif isinstance(value, Sweep) and getattr(value, "shuffle", False):
        raise ConfigError(f"{text}: the jobs of a sweep have a fixed order; leave shuffle() away")
    else:
        found = [f"{key}={each}" for each in override.sweep_string_iterator()]
    if not found:
        raise ConfigError(f"{text} stands for no value at all")
    return found


def _parsed(text: str) -> Override:
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException:
        raise ConfigError(
            f"cannot read the override {text!r}; write key=value and quote special characters"
        ) from None


def _checked(text: str) -> str:
    """One override, refused where Hydra would fail obscurely.

    ``key=value`` becomes ``++key=value``: whether a key exists is decided by the typed tree,
    not by which defaults a yaml happens to spell out.
    """
    override = _parsed(text)
    key, value = override.key_or_group, override.value()
    if not key:
        raise ConfigError(f"the override {text!r} has no key; write key=value")
    if override.type is OverrideType.DEL:
        raise ConfigError(f"{text}: a setting cannot be removed; write {key}=value")
    if key.partition(".")[0].partition("/")[0] == "hydra":
        raise ConfigError(
            f"{text}: Hydra's own settings have no effect here; a run's folder is set by "
            "output=/absolute/path and name=NAME"
        )
    if override.is_sweep_override():
        raise ConfigError(f"{key} takes one value here, got {text!r}")
    if key not in (*GROUPS, "experiment"):
        return f"++{text}" if override.type is OverrideType.CHANGE else text
    if key in SEVERAL and isinstance(value, list) and set(map(str, value)) <= {*options(key)}:
        return text
    if not isinstance(value, str) and (key, value) != ("experiment", None):
        raise ConfigError(f"{text} does not exist; choose one of {', '.join(options(key))}")
    return text


def _compose(overrides: list[str]) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Plain tree and group choices, whatever Hydra the process may be running already."""
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_module(version_base="1.3", config_module="conf"):
            tree = hydra.compose("config", overrides=overrides, return_hydra_config=True)
        choices = tree.hydra.runtime.choices
        sections = OmegaConf.masked_copy(tree, [str(key) for key in tree if key != "hydra"])
        plain = OmegaConf.to_container(sections, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(error)) from None
    finally:
        GlobalHydra.instance().hydra = outer
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}, choices


def _explain(error: Exception) -> str:
    """Hydra's message as one line about the override that caused it."""
    text = str(error)
    group = re.search(r"Could not find '(\w+)/([^']+)'", text)
    if group:
        allowed = ", ".join(options(group[1]))
        return f"{group[1]}={group[2]} does not exist; choose one of {allowed}"
    return _first_line(error)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split("\n")[0].split())
