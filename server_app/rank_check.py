"""Whether the ranks of single users in an evaluation reply are what was asked for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from models.types import IntArray, UserRanks
from strategies.messages import EvaluateReply


def ranks_problem(
    reply: EvaluateReply, users_U: IntArray | None, places: Mapping[str, int]
) -> str | None:
    """What is wrong with the reply's ranks; None when they are usable, or rightly absent.

    ``users_U``: the ranked users of the shard; None where ranks were not asked for. ``places``:
    how many ranks there are by kind of ranking (sampled, full). The reply's metrics were checked
    before. The text holds no figures.
    """
    found = reply.ranks
    if found is None or users_U is None:
        if found is None and users_U is None:
            return None
        return f"each user's ranks {'were not asked for' if users_U is None else 'are missing'}"
    if not np.array_equal(found.users_U, np.sort(users_U)):
        return "ranks are not those of the users asked for"
    kinds = {name.rpartition("/")[0] for name in reply.metrics}
    kinds = {kind for kind in kinds if kind.rpartition("/")[2] in places}  # not exposure
    if kinds != found.ranks.keys():
        return f"ranks and metrics do not both have {min(kinds ^ found.ranks.keys())}"
    return next((p for kind in sorted(kinds) if (p := _values(reply, found, kind, places))), None)


def _values(
    reply: EvaluateReply, found: UserRanks, kind: str, places: Mapping[str, int]
) -> str | None:
    ranks_U = found.ranks[kind]
    if (ranks_U < -1).any() or (ranks_U >= places[kind.rpartition("/")[2]]).any():
        return f"ranks {kind} are not all within the candidates"
    for name, value in reply.metrics.items():
        group, _, metric = name.rpartition("/")
        if group != kind:
            continue
        if reply.counts[name] != (ranks_U >= 0).sum():
            return f"ranks {kind} are not of as many users as {name}"
        what, _, cutoff = metric.partition("@")
        # Hit rates are whole numbers of users, so they agree exactly.
        if what == "hr" and value != ((ranks_U >= 0) & (ranks_U < int(cutoff))).sum():
            return f"ranks {kind} contradict {name}"
    return None
