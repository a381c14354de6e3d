"""Time spent in named functions, each without what it spent in other named ones.

A benchmark that wants the phases of a round says which functions they are; while it measures,
each is replaced by one that keeps the time. A function that is no longer there is an error, so
a profile cannot silently lose a phase.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

REST = "everything else"


@dataclass(frozen=True)
class Phase:
    """A phase and its function: ``module:name`` or ``module:Class.name``."""

    name: str
    function: str
    rename: Callable[..., str] | None = None
    """The phase's name from the function's arguments, where it has several."""

    def holder(self) -> tuple[Any, str]:
        """What has the function as an attribute, and the attribute.

        Raises:
            LookupError: when there is no such function.

        """
        module, _, path = self.function.partition(":")
        *outer, last = path.split(".")
        try:
            holder = functools.reduce(getattr, outer, import_module(module))
            getattr(holder, last)
        except (ImportError, AttributeError) as error:
            raise LookupError(f"phase {self.name!r}: there is no {self.function}") from error
        return holder, last


class Clock:
    """Seconds by phase. Phases may contain phases; one thread only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running = [REST]
        self._since = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Give the time of the block to a phase instead of to the one around it."""
        self._charge()
        self._running.append(name)
        try:
            yield
        finally:
            self._charge()
            self._running.pop()

    def _charge(self) -> None:
        now = time.perf_counter()
        self.seconds[self._running[-1]] += now - self._since
        self._since = now


@contextmanager
def timed(phases: Sequence[Phase]) -> Iterator[Clock]:
    """Measure the phases within the block; what is none of them is ``everything else``."""
    clock, restore = Clock(), list[tuple[Any, str, Any]]()
    try:
        for phase in phases:
            holder, name = phase.holder()
            original = vars(holder)[name]
            restore.append((holder, name, original))
            setattr(holder, name, _watched(clock, phase, original))
        with clock.phase(REST):
            yield clock
    finally:
        for holder, name, original in restore:
            setattr(holder, name, original)


def _watched(clock: Clock, phase: Phase, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        name = phase.name if phase.rename is None else phase.rename(*args, **kwargs)
        with clock.phase(name):
            return original(*args, **kwargs)

    return watched
