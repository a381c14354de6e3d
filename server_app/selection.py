"""Which evaluated round is reported, and when a run stops for lack of progress.

The measure is HR@10 on the sampled candidates, as in the paper, on validation or, under
the paper's own protocol, on test. Ties go to the earlier round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from conf.tree import Config
from server_app.errors import ServerError

MEASURE: Mapping[str, str | None] = {
    "best_validation": "validation/sampled/hr@10",
    "best_test": "test/sampled/hr@10",
    "last": None,
}


@dataclass(frozen=True)
class Selection:
    """The selected round so far. Its test figures stay in here until the run ends."""

    round: int | None = None
    value: float | None = None
    """The measure at the selected round."""
    stale: int = 0
    """Evaluations since the selected round."""
    metrics: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    """Users behind each metric."""

    def to_json(self) -> dict[str, object]:
        """Plain values for the checkpoint."""
        return asdict(self)


def measure_of(cfg: Config) -> str | None:
    """The metric that selects the round; None under ``select=last``."""
    return MEASURE[cfg.protocol.select]


def is_sealed(cfg: Config) -> bool:
    """Whether test figures of a round may be seen only once the round has been selected."""
    return cfg.protocol.validation and cfg.protocol.select != "best_test"


def consider(
    selection: Selection,
    server_round: int,
    metrics: Mapping[str, float],
    counts: Mapping[str, float],
    measure: str | None,
) -> Selection:
    """The selection after a further evaluated round.

    Raises:
        ServerError: when the nodes did not report the measure.

    """
    if measure is not None and measure not in metrics:
        raise ServerError(f"round {server_round}: the nodes reported no {measure}")
    value = None if measure is None else metrics[measure]
    best = selection.value
    if value is None or best is None or value > best:
        return Selection(server_round, value, 0, dict(metrics), dict(counts))
    return Selection(
        selection.round, best, selection.stale + 1, selection.metrics, selection.counts
    )


def out_of_patience(selection: Selection, patience: int | None) -> bool:
    """Whether ``patience`` evaluations have passed without a better round."""
    return patience is not None and selection.stale >= patience
