"""Pieces of work by several threads: order, bounds, errors, torch threads."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from client_app.parallel import in_order


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_keep_the_order_of_pieces(workers: int) -> None:
    """Earlier pieces take longer, so they finish last."""

    def work(piece: int) -> int:
        time.sleep(0.002 * (8 - piece))
        return piece * piece

    assert list(in_order(work, range(8), workers, 1)) == [k * k for k in range(8)]


def test_workers_work_at_the_same_time() -> None:
    """Each piece waits for the other one: a single thread would break the barrier."""
    both = threading.Barrier(2, timeout=20)

    def work(piece: int) -> int:
        both.wait()
        return piece

    assert list(in_order(work, [3, 4], 2, 1)) == [3, 4]


def test_results_are_made_as_they_are_taken() -> None:
    begun: list[int] = []
    results = in_order(begun.append, range(50), 2, 1)
    next(results)
    time.sleep(0.05)
    assert len(begun) <= 4  # one taken, and workers + 1 more
    assert len(list(results)) == 49


def test_the_first_error_in_order_is_raised_and_the_rest_dropped() -> None:
    begun: list[int] = []

    def work(piece: int) -> int:
        begun.append(piece)
        time.sleep(0.002 * (3 - min(piece, 3)))
        if piece in (1, 2):
            raise ValueError(f"piece {piece}")
        return piece

    with pytest.raises(ValueError, match="piece 1"):
        list(in_order(work, range(100), 3, 1))
    assert len(begun) < 10
    assert not [t for t in threading.enumerate() if t.name.startswith("block")]


@pytest.mark.parametrize("threads", [1, 2])
def test_torch_threads_of_a_worker(threads: int) -> None:
    here = torch.get_num_threads()
    found = list(in_order(lambda _: torch.get_num_threads(), range(4), 2, threads))
    assert found == [threads] * 4
    assert torch.get_num_threads() == here
