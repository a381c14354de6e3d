"""What cannot go with secure aggregation, and what has to be known with it."""

from __future__ import annotations

from collections.abc import Iterator

from conf.schema import Config

LEAST_NODES = 3


def problems(config: Config) -> Iterator[str]:
    """The first thing that is wrong, a line each."""
    secagg = config.privacy.secagg
    if secagg is None:
        return
    yield from _ranges(config)
    name, strategy = config.strategy_name, config.strategy_class
    if strategy.needs_individual_updates or strategy.personal_evaluation:
        yield (
            f"privacy=secagg hides single users' updates, and strategy={name} needs them: choose "
            "a strategy that sums (fedrecgel strategies)"
        )
    if getattr(config.strategy, "encryption", "none") != "none":
        yield "privacy=secagg masks sums and cannot add ciphertexts: strategy.encryption=none"
    if config.evaluation.user_ranks:
        yield "privacy=secagg and evaluation.user_ranks=true: single users' ranks are in clear"
    if config.evaluation.record_uplinks:
        yield (
            "privacy=secagg leaves no node's upload to record: evaluation.record_uplinks=[], and "
            "privacy.secagg.keep_uploads=true keeps what the server sees"
        )
    if config.evaluation.full == "selected":
        yield (
            "privacy=secagg ranks a round once, for two sums over other nodes tell their "
            "difference: evaluation.full=each or never"
        )


def _ranges(config: Config) -> Iterator[str]:
    secagg, federation = config.privacy.secagg, config.federation
    assert secagg is not None
    if not 0.5 < secagg.threshold <= 1:
        yield f"privacy.secagg.threshold must be above 0.5 and at most 1, got {secagg.threshold}"
    if secagg.min_nodes < LEAST_NODES:
        yield (
            f"privacy.secagg.min_nodes must be at least {LEAST_NODES}, got {secagg.min_nodes}: of "
            "two nodes each would know the other's part"
        )
    if not 0 <= secagg.fraction_bits < secagg.modulus_bits:
        yield (
            "privacy.secagg.fraction_bits must be at least 0 and below modulus_bits="
            f"{secagg.modulus_bits}, got {secagg.fraction_bits}"
        )
    if secagg.limit <= 0:
        yield f"privacy.secagg.limit must be positive, got {secagg.limit}"
    elif secagg.limit * 2.0**secagg.fraction_bits * secagg.min_nodes >= 2.0 ** (
        secagg.modulus_bits - 1
    ):
        yield (
            f"privacy.secagg: limit={secagg.limit:g} with fraction_bits={secagg.fraction_bits} "
            f"does not fit modulus_bits={secagg.modulus_bits} for {secagg.min_nodes} users"
        )
    least = federation.min_nodes or federation.num_nodes
    if least < secagg.min_nodes:
        yield (
            f"privacy=secagg needs at least {secagg.min_nodes} nodes, and "
            f"{'federation.min_nodes' if federation.min_nodes else 'federation.num_nodes'}={least}"
        )


def remarks(config: Config) -> Iterator[str]:
    """What is allowed but has to be known."""
    if config.privacy.secagg is None:
        return
    if config.evaluation.item_statistics:
        yield (
            "privacy=secagg: item counts and exposure are masked too, but two runs over nodes that "
            "differ by one tell that node's counts; evaluation.item_statistics=false sends none"
        )
