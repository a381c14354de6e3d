"""Independent pieces of a node's work done by several threads, results in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def in_order(
    work: Callable[[Piece], Result], pieces: Sequence[Piece], workers: int, threads: int
) -> Iterator[Result]:
    """``work`` of every piece, in the order of ``pieces``, by ``workers`` Python threads.

    Torch gives up the interpreter lock in its kernels, so small pieces of tensor work run
    side by side. Each worker has ``threads`` torch threads. At most ``workers + 1`` results
    exist before they are taken. The first exception in that order is raised, and pieces that
    were not begun are dropped.
    """
    if workers == 1 or len(pieces) == 1:
        yield from map(work, pieces)
        return
    # torch keeps the number of threads by thread
    pool = ThreadPoolExecutor(
        workers, "block", initializer=torch.set_num_threads, initargs=(threads,)
    )
    waiting: deque[Future[Result]] = deque()
    try:
        for piece in pieces:
            waiting.append(pool.submit(work, piece))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
