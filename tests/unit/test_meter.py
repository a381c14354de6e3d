"""Parts of a round's time: what nodes need at least, and what is left."""

from __future__ import annotations

import time

import pytest
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from server_app.concurrency import least_seconds, local_workers, working_at_once
from server_app.exchange import Courier
from server_app.grid import LocalGrid
from server_app.meter import PARTS, RoundMeter


def test_least_seconds_by_hand() -> None:
    """Four of 3, 1, 1, 1 s: 6 s alone, 3 s in pairs, and never below the longest."""
    work = [3.0, 1.0, 1.0, 1.0]
    assert [least_seconds(work, n) for n in (1, 2, 3, 4)] == [6.0, 3.0, 3.0, 3.0]
    assert least_seconds([], 2) == 0.0


def test_workers_bound_what_works_at_once() -> None:
    assert working_at_once(LocalGrid(3, workers=2), 3, fitting=9) == 2
    assert working_at_once(LocalGrid(1, workers=2), 1, fitting=9) == 1
    assert working_at_once(object.__new__(InMemoryGrid), 8, fitting=4) == 4
    assert working_at_once(object.__new__(HttpGrid), 8, fitting=4) == 8


def test_local_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    from conf.compose import compose

    monkeypatch.setattr("server_app.concurrency.cores", lambda: 8)
    assert local_workers(compose(["federation.num_nodes=3"])) == 3
    assert local_workers(compose(["federation.num_nodes=30", "engine.threads=2"])) == 4
    busy = ["federation.num_nodes=30", "engine.threads=3", "engine.workers=4"]
    assert local_workers(compose(busy)) == 1
    assert local_workers(compose(["federation.workers=5"])) == 5


def test_parts_add_up_to_the_time_spent() -> None:
    """One worker: of 0.05 s of exchange the two nodes worked 0.03 s, one after the other."""
    began = time.perf_counter()
    meter = RoundMeter(Courier(LocalGrid(2)), 2, checkpoint=4.0)
    with meter.part("train"):
        time.sleep(0.05)
    meter.node_work("train", [0.02, 0.01])
    with meter.part("server"):
        time.sleep(0.01)
    time.sleep(0.02)
    seconds = meter.seconds
    spent = time.perf_counter() - began
    assert list(seconds) == list(PARTS)
    assert seconds["train"] == pytest.approx(0.03)
    assert seconds["messages"] >= 0.02 and seconds["server"] >= 0.01 and seconds["other"] >= 0.02
    assert seconds["checkpoint"] == 4.0
    assert 0.08 <= sum(seconds.values()) - 4.0 <= spent


def test_nodes_cannot_have_worked_longer_than_the_exchange() -> None:
    meter = RoundMeter(Courier(LocalGrid(2)), 2)
    with meter.part("evaluate"):
        time.sleep(0.01)
    meter.node_work("evaluate", [5.0, 5.0])
    seconds = meter.seconds
    assert 0.01 <= seconds["evaluate"] < 5.0 and seconds["messages"] == 0.0
