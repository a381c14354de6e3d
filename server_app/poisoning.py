"""What a run with an attack or a defence says of them: per round, in total, beside a clean run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from conf.build import ConfigError
from conf.tree import Config
from models.types import IntArray
from server_app.errors import ServerError
from server_app.results import RunResult, load_result
from strategies.base import RecStrategy

EXPOSURE_RATIO = "attack/er@{0}"
MALICIOUS, FLAGGED, FOUND = "malicious", "flagged", "flagged_malicious"
COMPARED = ("dataset", "protocol", "strategy", "model", "seed", "num_users", "num_items")
"""What a clean run must have in common."""


def exposure_names(cfg: Config) -> frozenset[str]:
    """Names of the exposure ratios that a ranking of the whole catalogue gives."""
    if not cfg.attack.watches:
        return frozenset()
    return frozenset(EXPOSURE_RATIO.format(cutoff) for cutoff in cfg.evaluation.cutoffs)


def honest_users(cfg: Config, users: IntArray, num_users: int) -> IntArray:
    """The users whose rankings count: all but the malicious ones."""
    return np.setdiff1d(users, cfg.attack.malicious(cfg.seed, num_users), assume_unique=True)


def of_round(
    cfg: Config, strategy: RecStrategy, server_round: int, users: IntArray, num_users: int
) -> dict[str, float] | None:
    """Counts of a round for its record; None in a run without attack and defence.

    ``users`` are those whose updates arrived.
    """
    verdict = strategy.verdict
    if not cfg.attack.watches and verdict is None:
        return None
    sent = cfg.attack.malicious(cfg.seed, num_users)
    sent = np.intersect1d(sent, users) if cfg.attack.sends(server_round) else sent[:0]
    counts = {MALICIOUS: float(len(sent))}
    if verdict is not None and verdict.flagged_U is not None:
        counts[FLAGGED] = float(len(verdict.flagged_U))
        counts[FOUND] = float(len(np.intersect1d(sent, verdict.flagged_U)))
    if verdict is not None and verdict.figures:
        counts |= verdict.figures
    return counts


def in_total(records: Sequence[Mapping[str, object]]) -> dict[str, float]:
    """Sums over the rounds, and what part of the flagged updates was malicious, and the reverse.

    ``precision`` is there where something was flagged, ``recall`` where something malicious was
    sent to a rule that flags.
    """
    sums: dict[str, float] = {}
    for record in records:
        counts = record.get("poisoning")
        for name in (MALICIOUS, FLAGGED, FOUND):
            if isinstance(counts, Mapping) and name in counts:
                sums[name] = sums.get(name, 0.0) + float(counts[name])
    if sums.get(FLAGGED):
        sums["precision"] = sums[FOUND] / sums[FLAGGED]
    if FLAGGED in sums and sums[MALICIOUS]:
        sums["recall"] = sums[FOUND] / sums[MALICIOUS]
    return sums


def clean_run(cfg: Config) -> RunResult | None:
    """The run that figures are compared with; None where none is named.

    Raises:
        ConfigError: when there is none, or it is not of the same data, strategy and seed.

    """
    name = getattr(cfg.attack, "clean", None)
    if name is None:
        return None
    try:
        result = load_result(Path(cfg.output) / name)
    except ServerError as error:
        raise ConfigError(f"attack.clean={name}: {error}") from error
    expected = (cfg.dataset.name, cfg.protocol.name, cfg.strategy_name, cfg.model_name, cfg.seed)
    given = tuple(getattr(result, key) for key in COMPARED[: len(expected)])
    if given != expected:
        raise ConfigError(f"attack.clean={name} is of {given}, this run of {expected}")
    return result


def drops(
    metrics: Mapping[str, float], clean: RunResult, counts: Mapping[str, float]
) -> dict[str, float]:
    """By how much HR and NDCG are below the clean run's, and ER above, as ``drop/…``, ``rise/…``.

    Raises:
        ConfigError: when the clean run ranked other users.

    """
    out = {}
    for name in sorted(metrics.keys() & clean.metrics.keys()):
        if clean.counts.get(name) != counts.get(name):
            raise ConfigError(
                f"attack.clean={clean.name} has {name} of {clean.counts.get(name)} users, this run "
                f"of {counts.get(name)}: make it with attack=benign and the same attack.fraction"
            )
        if name.startswith("test/"):
            out[f"drop/{name}"] = clean.metrics[name] - metrics[name]
        elif name.startswith("attack/"):
            out[f"rise/{name}"] = metrics[name] - clean.metrics[name]
    return out
