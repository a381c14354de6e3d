"""What differential privacy cannot be combined with, and what has to be known of it."""

from __future__ import annotations

from collections.abc import Iterator

from conf.dp_schema import DPConfig, LDPConfig
from conf.schema import Config


def dp_problems(config: Config) -> Iterator[str]:
    """A line for each impossible setting of privacy=dp, ldp or pseudo_items."""
    privacy = config.privacy
    items = privacy.pseudo_items
    if items is not None and not 0 < items.ratio <= 100:
        yield f"privacy.pseudo_items.ratio must be above 0 and at most 100, got {items.ratio}"
    for name, settings in (("dp", privacy.dp), ("ldp", privacy.ldp)):
        if settings is not None:
            yield from _values(name, settings)
            yield from _uncovered(config, name, settings)
    if privacy.dp is not None and privacy.ldp is not None:
        yield "privacy=dp and privacy=ldp both clip and add noise: choose one of them"
    ldp = privacy.ldp
    if ldp is not None and None not in (ldp.epsilon, ldp.noise_multiplier):
        yield "privacy.ldp.epsilon gives the noise: leave privacy.ldp.noise_multiplier away"
    if privacy.dp is not None and privacy.dp.noise == "distributed":
        yield from _distributed(config, privacy.dp)


def clip_problem(config: Config, strategy: object) -> str | None:
    """Why the strategy, as configured, has no clipped update; None where it has or needs none."""
    privacy = config.privacy
    if privacy.dp is None and privacy.ldp is None:
        return None
    why = getattr(strategy, "clip_problem", None)
    if why is None:
        return None
    name = "dp" if privacy.dp is not None else "ldp"
    return f"privacy={name} has no guarantee for strategy={config.strategy_name}: {why}"


def dp_remarks(config: Config) -> list[str]:
    """What ε does not cover in this configuration, a line each."""
    privacy = config.privacy
    lines = []
    settings = privacy.dp or privacy.ldp
    name = "dp" if privacy.dp is not None else "ldp"
    if settings is not None:
        lines.append(
            f"privacy={name}: ε is of the updates alone. Figures of held-out items are exact sums "
            "over users, sent for measuring; they, and the choice of a round by them, are not in it"
        )
        if config.federation.grid != "deployment":
            lines.append(
                f"privacy={name}: in a simulation noise and cohorts follow from the seed, so that "
                "a run can be repeated; the guarantee holds for whoever does not know the seed"
            )
        if settings.metrics:
            lines.append(f"privacy.{name}.metrics=true: training losses are exact, not in ε")
    if privacy.pseudo_items is not None:
        lines.append("privacy=pseudo_items makes guessing harder and bounds nothing: it has no ε")
    return lines


def _values(name: str, settings: DPConfig | LDPConfig) -> Iterator[str]:
    keys = ("epsilon", "noise_multiplier", "clip", "clip_dense")
    for key in keys:
        value = getattr(settings, key)
        if value is not None and value <= 0:
            yield f"privacy.{name}.{key} must be positive, got {value}"
    if settings.delta is not None and not 0 < settings.delta < 1:
        yield f"privacy.{name}.delta must lie between 0 and 1, got {settings.delta}"
    if settings.epsilon is None and settings.noise_multiplier is None:
        yield (
            f"privacy={name} needs privacy.{name}.epsilon=NUMBER or "
            f"privacy.{name}.noise_multiplier=NUMBER"
        )


def _uncovered(config: Config, name: str, settings: DPConfig | LDPConfig) -> Iterator[str]:
    """What would leave the nodes beside the noisy updates."""
    if config.evaluation.item_statistics:
        yield (
            "evaluation.item_statistics=true sends exact counts of users' items, which "
            f"privacy={name} does not cover: evaluation.item_statistics=false"
        )
    if settings.metrics and config.federation.grid == "deployment":
        yield f"privacy.{name}.metrics=true sends exact losses: only in a simulation"
    if config.init.run is not None or config.init.strategy is not None:
        yield (
            "init.run and init.strategy start from items made of the users' data, which "
            f"privacy={name} does not cover: init=drawn"
        )


def _distributed(config: Config, dp: DPConfig) -> Iterator[str]:
    if getattr(config.privacy, "secagg", None) is None:
        yield (
            "privacy.dp.noise=distributed gives each node a part of the noise, too little for a "
            "server that sees single nodes: 'privacy=[secagg,dp]', or privacy.dp.noise=central"
        )
    if dp.sampling != "fixed":
        yield (
            "privacy.dp.noise=distributed divides the noise among a known number of users: "
            "privacy.dp.sampling=fixed"
        )
    if config.federation.on_missing == "continue":
        yield (
            "privacy.dp.noise=distributed has enough noise only where min_share of the users "
            "arrive: federation.on_missing=fail or retry"
        )
