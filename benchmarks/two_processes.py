"""Two processes with half of a cohort each, as the nodes of a real run have.

They live as long as the benchmark, hold the data, and share the parameters and their sums
with the parent by memory. Halves are balanced by number of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import TracebackType
from typing import TypeVar

import numpy as np
import torch

from benchmarks import ways
from benchmarks.made_up import Shape, Work, made_up
from models.tables import add_table
from models.types import Tensors, Update

Result = TypeVar("Result")


class TwoProcesses:
    """A context in which a cohort can be trained by two persistent processes."""

    def __init__(self, overrides: Sequence[str], shape: Shape, work: Work) -> None:
        self.work = work
        self._sums = [_shared_zeros(work.shared) for _ in range(2)]
        context = get_context("spawn")
        self._pools = [
            ProcessPoolExecutor(1, context, _start, (list(overrides), shape, part, sums))
            for part, sums in enumerate(self._sums)
        ]

    def __enter__(self) -> TwoProcesses:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pool in self._pools:
            pool.shutdown()

    def both(self, call: Callable[[], Result]) -> list[Result]:
        """``call``, a function of a module, in both at once."""
        waiting = [pool.submit(call) for pool in self._pools]
        return [future.result() for future in waiting]

    def round(self, *, drawn: bool) -> Tensors:
        """Shared parameters after a round; ``drawn``: samples are drawn as well."""
        weight = sum(self.both(_train_drawn if drawn else _train_given))
        total = {name: tensor + self._sums[1][name] for name, tensor in self._sums[0].items()}
        return ways.stepped(self.work, Update(total, weight))


def _shared_zeros(template: Tensors) -> Tensors:
    zeros = {name: torch.zeros_like(tensor) for name, tensor in template.items()}
    for tensor in zeros.values():
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    return zeros


# ---- in the processes ------------------------------------------------------------------------
_mine: dict[str, tuple[Work, np.ndarray[tuple[int], np.dtype[np.int64]], Tensors]] = {}


def _start(overrides: Sequence[str], shape: Shape, part: int, sums: Tensors) -> None:
    torch.set_num_threads(1)
    work = made_up(overrides, shape)
    sizes = np.diff(work.dataset.indptr).tolist()
    _mine["half"] = (work, np.array(ways.balanced_halves(sizes)[part], dtype=np.int64), sums)


def _train_given() -> float:
    work, users, sums = _mine["half"]
    return _keep(ways.updates(work, users), sums)


def _train_drawn() -> float:
    work, users, sums = _mine["half"]
    return _keep(ways.whole_round(work, users), sums)


def _keep(update: Update, sums: Tensors) -> float:
    for name, tensor in sums.items():
        tensor.zero_()
        add_table(tensor, update.tensors[name])
    return update.weight
