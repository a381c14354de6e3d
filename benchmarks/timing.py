"""Timing several ways of the same work against each other in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch


@dataclass(frozen=True)
class Way:
    """Something to time, with so many torch threads in this process."""

    call: Callable[[], object]
    threads: int = 1


def alternate(ways: Mapping[str, Way], repeats: int, least_s: float = 0.1) -> dict[str, float]:
    """Median seconds of a call of each way.

    After one call of each that does not count, the ways take turns ``repeats`` times, so that
    load from outside meets all of them alike; a turn lasts ``least_s`` seconds or one call.
    """
    for way in ways.values():
        _once(way)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            seconds[name] += _turn(way, least_s)
    return {name: median(values) for name, values in seconds.items()}


def _turn(way: Way, least_s: float) -> list[float]:
    seconds = [_once(way)]
    while sum(seconds) < least_s:
        seconds.append(_once(way))
    return seconds


def _once(way: Way) -> float:
    if torch.get_num_threads() != way.threads:
        torch.set_num_threads(way.threads)
    start = time.perf_counter()
    way.call()
    return time.perf_counter() - start
