"""Attacks and defences that a configuration cannot have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conf.schema import Config


def poisoning_problems(config: Config, strategy: Any) -> Iterator[str]:
    """What is wrong with the pair of attack and defence, a line each."""
    if config.attack.watches:
        yield from _attack(config, strategy)
    if config.defence.by_user:
        yield from _defence(config, strategy)


def _attack(config: Config, strategy: Any) -> Iterator[str]:
    if config.federation.grid == "deployment":
        yield "an attack is for simulations: federation.grid=deployment needs attack=none"
    if not strategy.plain_updates:
        yield (
            f"strategy={config.strategy_name} does not send gradients or movements of the shared "
            "parameters that are added up in the clear, and attacks change such: attack=none"
        )
    elif (problem := config.attack.problem(strategy)) is not None:
        yield f"attack with strategy={config.strategy_name}: {problem}"
    if config.evaluation.full == "never":
        yield (
            "an attack is judged by the exposure of its targets in rankings of the whole "
            "catalogue: evaluation.full=each or selected"
        )


def _defence(config: Config, strategy: Any) -> Iterator[str]:
    if not strategy.plain_updates:
        yield (
            f"a defence compares users' gradients or movements of the shared parameters, and "
            f"strategy={config.strategy_name} sends none that are added up in the clear: "
            "defence=none"
        )
    if config.privacy.dp is not None:
        yield (
            "privacy=dp adds noise to the plain sum of users' updates, and a defence makes another "
            "one of them: defence=none, or privacy=ldp"
        )
    if config.privacy.sums_only or getattr(config.privacy, "secagg", None) is not None:
        yield (
            "a defence needs each user's update by itself, and with this privacy setting the "
            "server sees sums only: defence=none, or privacy=none"
        )
