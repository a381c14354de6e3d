"""Wall times and traffic of one round."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from server_app.concurrency import least_seconds, working_at_once
from server_app.exchange import Courier

PARTS = {
    "train": "training",
    "evaluate": "evaluation",
    "messages": "messages",
    "server": "server",
    "checkpoint": "checkpoints",
    "other": "other",
}
"""Parts of a round's wall time, with their names in reports. Of an exchange, what the nodes
need at least, as many at once as can work at once, is ``train`` or ``evaluate`` and the rest
is ``messages``; ``checkpoint`` is that of the round before."""


class RoundMeter:
    """Measures the parts of a round, and what the courier carried since it was made."""

    def __init__(self, courier: Courier, fitting: int, checkpoint: float = 0.0) -> None:
        """``fitting``: workers of a simulation; ``checkpoint``: seconds the last one took."""
        self._courier, self._fitting = courier, fitting
        self._up, self._down = courier.bytes_up, courier.bytes_down
        self._late = courier.dropped_late
        self._started = time.perf_counter()
        self._parts = dict.fromkeys(PARTS, 0.0) | {"checkpoint": checkpoint}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the wall time of the block to ``name``."""
        started = time.perf_counter()
        yield
        self._parts[name] += time.perf_counter() - started

    def node_work(self, name: str, seconds: Sequence[float]) -> None:
        """Say how long each node of the exchange ``name`` worked; the rest went to messages."""
        at_once = working_at_once(self._courier.grid, len(seconds), self._fitting)
        work = min(self._parts[name], least_seconds(seconds, at_once))
        self._parts["messages"] += self._parts[name] - work
        self._parts[name] = work

    def folded_work(self, name: str, seconds: Sequence[float]) -> None:
        """Say how long nodes worked on ``name`` within an exchange that was for something else."""
        at_once = working_at_once(self._courier.grid, len(seconds), self._fitting)
        work = min(self._parts["messages"], least_seconds(seconds, at_once))
        self._parts["messages"] -= work
        self._parts[name] += work

    @property
    def seconds(self) -> dict[str, float]:
        """Parts that add up to the time since the meter was made, and the checkpoint before."""
        spent = time.perf_counter() - self._started
        known = sum(self._parts.values()) - self._parts["checkpoint"]
        return self._parts | {"other": max(0.0, spent - known)}

    @property
    def bytes_up(self) -> int:
        """Payload received."""
        return self._courier.bytes_up - self._up

    @property
    def bytes_down(self) -> int:
        """Payload sent."""
        return self._courier.bytes_down - self._down

    @property
    def dropped_late(self) -> int:
        """Replies of earlier exchanges that arrived now."""
        return self._courier.dropped_late - self._late
