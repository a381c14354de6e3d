"""Simulated devices and asynchronous steps that a configuration cannot have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conf.schema import Config


def devices_problems(config: Config, strategy: Any) -> Iterator[str]:
    """What is wrong with devices and ``strategy.async``, a line each."""
    settings = config.strategy.async_
    if config.devices.simulated:
        yield from _devices(config, strategy)
    elif settings is not None:
        yield (
            "strategy.async needs simulated devices, whose speeds say which updates arrive first: "
            "devices=phones"
        )
    if settings is not None:
        yield from _asynchronous(config, strategy)


def _devices(config: Config, strategy: Any) -> Iterator[str]:
    if config.federation.grid == "deployment":
        yield "devices are simulated: federation.grid=deployment has real ones, devices=none"
    if not strategy.supports_partial_participation:
        yield (
            f"strategy={config.strategy_name} needs every user in every round, and devices are "
            "not always there: devices=none"
        )
    if config.privacy.dp is not None:
        yield (
            "privacy=dp counts on cohorts that are drawn evenly, and devices decide otherwise: "
            "devices=none, or privacy=ldp"
        )


def _asynchronous(config: Config, strategy: Any) -> Iterator[str]:
    if (problem := strategy.async_problem) is not None:
        yield f"strategy.async is not for strategy={config.strategy_name}: {problem}"
    if config.privacy.secagg is not None:
        yield "strategy.async gives updates different weights, privacy=secagg sums them alike"
    if config.defence.by_user:
        yield "strategy.async weighs updates by their age, and a defence takes them alike"
    if config.evaluation.record_uplinks:
        yield (
            "evaluation.record_uplinks keeps uploads with the parameters that they were made "
            "from, one for all: not with strategy.async"
        )
