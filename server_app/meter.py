"""Wall times and traffic of one round."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from server_app.exchange import Courier


class RoundMeter:
    """Measures named parts of a round, and what the courier carried since it was made."""

    def __init__(self, courier: Courier) -> None:
        self._courier = courier
        self._up, self._down = courier.bytes_up, courier.bytes_down
        self._late = courier.dropped_late
        self._work = 0.0
        self.seconds = {"train": 0.0, "evaluate": 0.0, "messages": 0.0, "server": 0.0}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the wall time of the block to ``name``."""
        started = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - started

    def node_work(self, seconds: float) -> None:
        """Say how long the slowest node of an exchange worked; the rest went to messages."""
        exchanges = self.seconds["train"] + self.seconds["evaluate"]
        self._work += seconds
        self.seconds["messages"] = max(0.0, exchanges - self._work)

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
