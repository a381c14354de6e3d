"""The configuration tree: typed, frozen, cross-checked. No Hydra here; nodes use it too.

``conf.compose`` turns overrides into a plain mapping, :func:`from_mapping` turns that
into :class:`Config`, and the tree travels to the nodes as JSON.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from conf.build import ConfigError, build, import_target, plain, target_of, unknown_keys
from conf.checks import check, ranks_each_in_full, remarks
from conf.dp_schema import DPConfig, LDPConfig, PseudoItemsConfig
from conf.privacy_schema import AttackConfig, DefenceConfig, DevicesConfig, PrivacyConfig
from conf.schema import (
    Config,
    DatasetConfig,
    EngineConfig,
    EvaluationConfig,
    FederationConfig,
    InitConfig,
    ProtocolConfig,
    SyntheticConfig,
    TrackingConfig,
)
from conf.secagg_schema import SecAggConfig

__all__ = [
    "AttackConfig",
    "Config",
    "ConfigError",
    "DPConfig",
    "DatasetConfig",
    "DefenceConfig",
    "DevicesConfig",
    "EngineConfig",
    "EvaluationConfig",
    "FederationConfig",
    "InitConfig",
    "LDPConfig",
    "PrivacyConfig",
    "ProtocolConfig",
    "PseudoItemsConfig",
    "SecAggConfig",
    "SyntheticConfig",
    "TrackingConfig",
    "build",
    "build_strategy",
    "from_json",
    "from_mapping",
    "ranks_each_in_full",
    "remarks",
    "to_json",
    "to_mapping",
]

MODEL_PACKAGE, STRATEGY_PACKAGE = "models", "strategies"
BY_TARGET = {"attack": "client_app", "defence": "server_app", "devices": "server_app"}
"""Groups whose options may be classes of a package, with settings of their own."""
PLAIN = {"attack": AttackConfig, "defence": DefenceConfig, "devices": DevicesConfig}
"""What they are without."""


def from_mapping(mapping: Mapping[str, Any]) -> Config:
    """Build and cross-check the tree from a plain mapping.

    ``model`` and ``strategy`` carry ``_target_``, a class of ``models`` or ``strategies``.

    Raises:
        ConfigError: one line naming the key and what is allowed there.

    """
    names = [f.name for f in dataclasses.fields(Config) if f.name != "strategy_class"]
    unknown_keys(mapping, names, "")
    values = dict(mapping)
    values["model"], _ = _targeted(values, "model", MODEL_PACKAGE)
    values["strategy"], values["strategy_class"] = _targeted(values, "strategy", STRATEGY_PACKAGE)
    for key, package in BY_TARGET.items():
        if "_target_" in (values.get(key) or {}):
            values[key] = _of_package(values, key, package)
    config = build(Config, values, "")
    check(config)
    return config


def to_mapping(config: Config) -> dict[str, Any]:
    """Plain mapping from which :func:`from_mapping` builds an equal tree."""
    mapping = {
        f.name: getattr(config, f.name)
        for f in dataclasses.fields(config)
        if f.name != "strategy_class"
    }
    for key, value in mapping.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            mapping[key] = plain(value)
    mapping["model"]["_target_"] = target_of(type(config.model))
    mapping["strategy"]["_target_"] = target_of(config.strategy_class)
    for key in BY_TARGET:
        value = getattr(config, key)
        if type(value) not in PLAIN.values():
            mapping[key]["_target_"] = target_of(type(value))
    return mapping


def to_json(config: Config) -> str:
    """The tree as JSON, keys sorted: equal trees give equal text."""
    return json.dumps(to_mapping(config), sort_keys=True, allow_nan=False)


def from_json(text: str) -> Config:
    """The tree that :func:`to_json` wrote, checked again.

    Raises:
        ConfigError: when the text is not JSON or not a valid tree.

    """
    try:
        mapping = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"the configuration is not valid JSON: {error}") from None
    if not isinstance(mapping, dict):
        raise ConfigError("the configuration must be a JSON object")
    return from_mapping(mapping)


def build_strategy(config: Config) -> Any:
    """The strategy object of the tree, checked against its model."""
    try:
        strategy = config.strategy_class(config.strategy, config.model)
    except ValueError as error:
        raise ConfigError(f"strategy={config.strategy_name}: {error}") from None
    if config.init.users == "solved":
        strategy.solve_first_users(config.init.ridge, config.init.gain)
    return strategy


def _of_package(values: Mapping[str, Any], key: str, package: str) -> Any:
    """The settings object ``values[key]``, of the class that its ``_target_`` names."""
    section = values[key]
    target = import_target(section["_target_"], package, f"{key}._target_")
    if not issubclass(target, PLAIN[key]):
        raise ConfigError(f"{key}._target_: {section['_target_']} is no {key}")
    settings = {name: value for name, value in section.items() if name != "_target_"}
    return build(target, settings, key)


def _targeted(values: Mapping[str, Any], key: str, package: str) -> tuple[Any, type]:
    """Object described by ``values[key]``, and the class that its ``_target_`` names."""
    section = values.get(key)
    if not isinstance(section, Mapping) or "_target_" not in section:
        raise ConfigError(
            f"{key} must be a section with _target_: a class of the {package} package"
        )
    target = import_target(section["_target_"], package, f"{key}._target_")
    settings = {name: value for name, value in section.items() if name != "_target_"}
    schema = target if package == MODEL_PACKAGE else getattr(target, "Config", None)
    if not (isinstance(schema, type) and dataclasses.is_dataclass(schema)):
        raise ConfigError(f"{key}._target_: {section['_target_']} has no settings dataclass")
    return build(schema, settings, key), target
