"""Whether a node's evaluation reply is what was asked for and can be true."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from conf.tree import Config
from models.metrics import METRICS
from models.types import IntArray
from server_app.poisoning import exposure_names
from server_app.rank_check import ranks_problem
from strategies.messages import EvaluateReply

PLACES = 10
"""Exposure counts the places of a top 10."""


@dataclass(frozen=True)
class Asked:
    """What one evaluation asks of every node."""

    round: int
    names: Mapping[str, frozenset[str]]
    """Names of the metrics by split; a shard without held-out items of a split has none."""
    exposure: bool
    num_items: int
    places: Mapping[str, int]
    """Ranks that there are by kind of ranking (sampled, full)."""


def asked_names(cfg: Config, full: bool) -> dict[str, frozenset[str]]:
    """Names of the metrics that an evaluation gives, by split (test, validation; attack)."""
    kinds = ("sampled", "full") if full else ("sampled",)
    watched = {"attack": exposure_names(cfg)} if full and cfg.attack.watches else {}
    metrics = [f"{metric}@{cutoff}" for metric in METRICS for cutoff in cfg.evaluation.cutoffs]
    return watched | {
        split: frozenset(f"{split}/{kind}/{metric}" for kind in kinds for metric in metrics)
        for split in (("test", "validation") if cfg.protocol.validation else ("test",))
    }


def problem(
    reply: EvaluateReply, asked: Asked, num_users: int, ranked: IntArray | None = None
) -> str | None:
    """What is wrong with the reply of a shard of ``num_users`` users; None when it is usable.

    ``ranked``: these users, where each one's ranks were asked for. The text holds no figures:
    those of the test split may be sealed.
    """
    if reply.round != asked.round:
        return f"answers round {reply.round} instead of {asked.round}"
    return (
        _names(reply, asked.names)
        or next((p for n in reply.metrics if (p := _value(reply, n, num_users))), None)
        or _exposure(reply.exposure_I, asked, num_users)
        or ranks_problem(reply, ranked, asked.places)
    )


def _names(reply: EvaluateReply, asked: Mapping[str, frozenset[str]]) -> str | None:
    given = reply.metrics.keys()
    if given != reply.counts.keys():
        name = min(given ^ reply.counts.keys())
        return f"{name} has no {'number of users' if name in given else 'value'}"
    unknown = given - frozenset().union(*asked.values())
    if unknown:
        return f"{min(unknown)} was not asked for"
    missing = [min(names - given) for names in asked.values() if names & given and names - given]
    return f"{missing[0]} is missing" if missing else None


def _value(reply: EvaluateReply, name: str, num_users: int) -> str | None:
    value, count = reply.metrics[name], reply.counts[name]
    if not 0 <= count <= num_users or count != int(count):
        return f"{name} has {count:g} users of a shard of {num_users}"
    # Every user's value is within [0, 1], and rounding a sum of such never passes a whole number.
    if not 0 <= value <= count:
        return f"{name} is not a sum of values within [0, 1] over its users"
    return None


def _exposure(exposure_I: IntArray | None, asked: Asked, num_users: int) -> str | None:
    if exposure_I is None or not asked.exposure:
        present = exposure_I is not None
        return None if present == asked.exposure else _presence(present)
    if len(exposure_I) != asked.num_items:
        return f"exposure has {len(exposure_I)} items instead of {asked.num_items}"
    if (exposure_I < 0).any() or (exposure_I > num_users).any():
        return f"exposure of an item is not within 0 and the shard's {num_users} users"
    if exposure_I.sum() > PLACES * num_users:
        return f"exposure has more than {PLACES} places a user"
    return None


def _presence(present: bool) -> str:
    return "exposure was not asked for" if present else "exposure is missing"
