"""What an evaluation says: means over users, catalogue coverage and popularity share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from models.types import IntArray, UserRanks
from server_app.user_ranks import together
from strategies.hooks import mean_metrics
from strategies.messages import EvaluateReply

COVERAGE, POPULARITY_SHARE = "catalogue/coverage@10", "catalogue/popularity_share@10"
TEST = "test/"
TOP_SHARE = 0.1
"""Items count as popular when they are among this share of the catalogue."""


@dataclass(frozen=True)
class Ranking:
    """Means over users by metric name, and the number of users behind each."""

    metrics: dict[str, float]
    counts: dict[str, float]
    seconds: tuple[float, ...] = ()
    """How long each node took."""
    ranks: UserRanks | None = None
    """Each user's, where nodes sent them."""

    def visible(self, sealed: bool) -> dict[str, float]:
        """The metrics that may be shown; test figures only where they are not sealed."""
        return {n: v for n, v in self.metrics.items() if not (sealed and n.startswith(TEST))}


def summarise(replies: Sequence[EvaluateReply], item_counts_I: IntArray | None) -> Ranking:
    """Means over all users of the replies; statistics of the catalogue where nodes sent them."""
    counts: dict[str, float] = {}
    for reply in replies:
        for name, count in reply.counts.items():
            counts[name] = counts.get(name, 0.0) + count
    metrics = mean_metrics(replies)
    exposures = [r.exposure_I for r in replies if r.exposure_I is not None]
    if item_counts_I is not None and exposures and len(exposures) == len(replies):
        metrics |= catalogue_statistics(np.sum(exposures, axis=0), item_counts_I)
    seconds = tuple(reply.seconds for reply in replies)
    return Ranking(
        metrics, counts, seconds, together([r.ranks for r in replies if r.ranks is not None])
    )


def catalogue_statistics(exposure_I: IntArray, item_counts_I: IntArray) -> Mapping[str, float]:
    """Coverage and popularity share of the users' top 10.

    Coverage is the share of the catalogue that stands in at least one user's top 10;
    popularity share the part of all top-10 places that goes to the tenth of the catalogue
    with the most training interactions (at least one item; ties to the lower index).
    """
    places = int(exposure_I.sum())
    if not places:
        return {}
    num_popular = max(1, int(len(item_counts_I) * TOP_SHARE))
    popular = np.argsort(-item_counts_I, kind="stable")[:num_popular]
    return {
        COVERAGE: float((exposure_I > 0).mean()),
        POPULARITY_SHARE: float(exposure_I[popular].sum() / places),
    }
