"""Settings of asynchronous aggregation, which any strategy with plain updates can have."""

from __future__ import annotations

from dataclasses import dataclass

from strategies.checks import Checks


@dataclass(frozen=True)
class AsyncConfig(Checks):
    """Buffered asynchronous aggregation (FedBuff, Nguyen et al., AISTATS 2022, arXiv 2106.06639).

    The server steps along (1/K) Σ (1 + s)^-``exponent`` · Δ, s being its steps since the device
    of Δ was asked: a stale update counts less, and what it lacks is not given to the others.
    """

    buffer: int
    """K, updates a step."""
    max_staleness: int = 20
    """Older updates are not used."""
    exponent: float = 0.5
    """1/√(1 + s), as in the paper; 0 counts all updates alike."""

    def __post_init__(self) -> None:
        self._at_least_one("buffer")
        self._not_negative("max_staleness", "exponent")

    def weight(self, staleness: int) -> float:
        """Of an update that is ``staleness`` steps old."""
        return float((1 + staleness) ** -self.exponent)
