"""Ranges and pairs of settings that cannot work together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from conf import secagg_checks
from conf.build import ConfigError
from conf.dataset_checks import absolute_problems, dataset_problems
from conf.devices_checks import devices_problems
from conf.dp_checks import clip_problem, dp_problems, dp_remarks
from conf.init_checks import init_problems
from conf.poisoning_checks import poisoning_problems
from conf.schema import Config

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")

AT_LEAST = {
    "protocol.min_interactions": 2,
    "protocol.num_candidates": 1,
    "engine.threads": 1,
    "engine.workers": 1,
    "engine.block_users": 1,
    "engine.evaluation_block": 1,
    "federation.num_nodes": 1,
    "federation.min_nodes": 1,
    "federation.workers": 1,
    "federation.rounds": 1,
    "federation.retries": 0,
    "federation.checkpoint_every": 1,
    "init.rounds": 1,
    "evaluation.every": 1,
    "evaluation.users": 1,
    "evaluation.patience": 1,
    "seed": 0,
}
"""Least value of each whole number; None is left alone where the type allows it."""


def check(config: Config) -> None:
    """Raise ConfigError for the first impossible value or pair of values."""
    for problem in _problems(config):
        raise ConfigError(problem)
    try:
        strategy = config.strategy_class(config.strategy, config.model)
    except ValueError as error:
        raise ConfigError(
            f"strategy={config.strategy_name} with model={config.model_name}: {error}"
        ) from None
    whys = [
        clip_problem(config, strategy),
        *poisoning_problems(config, strategy),
        *devices_problems(config, strategy),
    ]
    for why in filter(None, whys):
        raise ConfigError(why)
    if (rounds := config.federation.rounds) < strategy.period:
        raise ConfigError(
            f"strategy={config.strategy_name} changes its parameters every {strategy.period} "
            f"rounds: federation.rounds={rounds} would end with those of the start"
        )


def remarks(config: Config) -> list[str]:
    """What is allowed but has to be known when the numbers are read, a line each."""
    lines = []
    if config.protocol.negatives == "exclude_heldout":
        lines.append(
            "protocol.negatives=exclude_heldout keeps the held-out items out of the training "
            "negatives: this leaks the answer; compare only with papers that did the same"
        )
    if config.protocol.select == "best_test":
        lines.append(
            "protocol.select=best_test reports the best round on the test items, as the paper "
            "does: an optimistic number"
        )
    period = config.strategy_class(config.strategy, config.model).period
    if config.evaluation.every % period or config.federation.rounds % period:
        lines.append(
            f"strategy={config.strategy_name} changes its parameters every {period} rounds, and "
            "other rounds have those of before: let it divide evaluation.every and "
            "federation.rounds"
        )
    if config.evaluation.record_uplinks:
        lines.append(
            "evaluation.record_uplinks keeps nodes' uploads in the run's folder: whoever can read "
            "it can do to the users what fedrecgel audit does"
        )
    if config.evaluation.full == "selected" and ranks_each_in_full(config):
        lines.append(
            f"strategy={config.strategy_name} ranks users with tensors that the server has for the "
            "round alone: with evaluation.full=selected every evaluation ranks the whole catalogue"
        )
    return [*lines, *dp_remarks(config), *secagg_checks.remarks(config)]


def _record_uplinks(config: Config) -> Iterator[str]:
    rounds = config.evaluation.record_uplinks
    if any(number < 1 for number in rounds) or list(rounds) != sorted(set(rounds)):
        yield f"evaluation.record_uplinks must be ascending rounds from 1 on, got {list(rounds)}"
    if rounds and config.federation.grid == "deployment":
        yield (
            "evaluation.record_uplinks keeps every node's upload, from which its users can be "
            "read: only in a simulation, whose users are nobody's"
        )


def ranks_each_in_full(config: Config) -> bool:
    """Whether evaluations rank the whole catalogue: asked for, or as no later one could."""
    full = config.evaluation.full
    personal: bool = config.strategy_class.personal_evaluation
    return full == "each" or (full == "selected" and personal)


def _problems(config: Config) -> Iterator[str]:
    yield from _ranges(config)
    yield from _record_uplinks(config)
    yield from dataset_problems(config.dataset, config.federation.grid)
    yield from _protocol(config)
    yield from init_problems(config)
    yield from _run(config)
    yield from dp_problems(config)
    yield from secagg_checks.problems(config)
    if config.evaluation.user_ranks and config.federation.grid == "deployment":
        yield (
            "evaluation.user_ranks=true is for simulations: ranks are personal figures, which do "
            "not leave the nodes of a deployment (federation.grid=deployment)"
        )


def _ranges(config: Config) -> Iterator[str]:
    for key, least in AT_LEAST.items():
        value = _lookup(config, key)
        if value is not None and value < least:
            yield f"{key} must be at least {least}, got {value}"
    federation = config.federation
    shares = {
        "federation.fraction": federation.fraction,
        "federation.min_share": federation.min_share,
    }
    for key, share in {**shares, "init.fraction": config.init.fraction}.items():
        if not 0 < share <= 1:
            yield f"{key} must be above 0 and at most 1, got {share}"
    yield from _nodes(config)
    for key in ("deadline_s", "register_timeout_s"):
        if getattr(federation, key) <= 0:
            yield f"federation.{key} must be positive, got {getattr(federation, key)}"
    cutoffs = config.evaluation.cutoffs
    if not cutoffs or cutoffs[0] < 1 or list(cutoffs) != sorted(set(cutoffs)):
        yield f"evaluation.cutoffs must be ascending positive numbers, got {list(cutoffs)}"
    if 10 not in cutoffs:
        yield f"evaluation.cutoffs must hold 10: rounds are compared by HR@10, got {list(cutoffs)}"


def _nodes(config: Config) -> Iterator[str]:
    federation = config.federation
    if federation.rejoin_s < 0:
        yield f"federation.rejoin_s must not be negative, got {federation.rejoin_s}"
    least = federation.min_nodes
    if least is not None and least > federation.num_nodes:
        yield (
            f"federation.min_nodes={least} is more than federation.num_nodes={federation.num_nodes}"
        )
    if least is not None and federation.grid != "deployment":
        yield "federation.min_nodes is for a deployment: simulated nodes are all there"


def _protocol(config: Config) -> Iterator[str]:
    protocol = config.protocol
    if protocol.select == "best_validation" and not protocol.validation:
        yield (
            "protocol.select=best_validation needs protocol.validation=true; "
            "or choose protocol.select=best_test or last"
        )
    if config.evaluation.patience is not None and protocol.select == "last":
        yield (
            "evaluation.patience stops on the selection metric, but protocol.select=last has "
            "none; choose best_validation or best_test, or evaluation.patience=null"
        )
    partial = config.strategy_class.supports_partial_participation
    if not partial and config.federation.fraction < 1:
        yield (
            f"strategy={config.strategy_name} needs every user in every round: "
            "federation.fraction=1.0"
        )


def _run(config: Config) -> Iterator[str]:
    if config.resume and config.name is None:
        yield "resume=true needs the name of the run: name=NAME"
    if config.name is not None and not RUN_NAME.fullmatch(config.name):
        yield f"name must be letters, digits, '.', '_' or '-', got {config.name!r}"
    if config.seed >= 2**63:
        yield f"seed must be below 2**63, got {config.seed}"
    for key in ("output", "cache"):
        yield from absolute_problems(key, getattr(config, key) or None)


def _lookup(config: Config, key: str) -> int | None:
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    assert value is None or isinstance(value, int)
    return value
