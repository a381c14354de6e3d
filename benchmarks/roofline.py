"""The work a round needs after all exact savings, and what a core of this machine can do.

The count is of the algorithm, not of our code. Counted are products of matrices, two
operations a multiply-add; sigmoids, norms and sums are left out, so a bound is on the low
side. Notation: F factors, first layer H = 4F wide, an MLP embedding E = 4F wide.

NeuMF, for a distinct (user, item) pair, in multiply-adds, with u = H·2F + 2F·F for the layers
above the first and f = E·H for the item half of the first:

==========================  ==================  =============================================
base pass                   2u                  forward; backward to the first layer's output
user's own weight gradient  u + f               plain: u, as only its sum is needed
user's own row gradient     f                   plain: none a pair
pass at the moved point     3u + f              forward, backward, weight gradients; (E+ε)Ŵᵀ
its first layer             2f                  weight gradient, row gradient
private pass                2u                  forward and backward; no weight gradients
==========================  ==================  =============================================

A distinct item costs f once a round (E·Wᵀ for the base and the private pass) and without a
shared perturbation 2f more: deltas are summed by item before the weight and the row gradient.
A user costs f for his half of the first layer and f back, in the base and in the private
pass, and f for the sum of weight gradients; his perturbed half has rank one.

Matrix factorisation: F multiply-adds a pair for the scores, F for the item gradient and F for
the user's; with a private perturbation 2F more; the shared perturbation has rank one and costs
none. Bytes: a pair's row is read, and its gradient's row read and written; a sample's item and
label are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from models.sam import Radii
from models.types import Samples

SAMPLE_BYTES = 8 + 4
"""An int64 item and a float32 label."""
GEMM_SHAPES = ((512, 128, 128), (1024, 1024, 1024))
"""Products (rows, inner, columns) tried: the NeuMF kernel's own size, and a large one."""
CACHED_BYTES, MEMORY_BYTES = 1 << 17, 1 << 27
"""Bytes of the buffers copied: both fit in a core's second-level cache, or in none."""


@dataclass(frozen=True)
class Counts:
    """Of a cohort: samples, distinct (user, item) pairs, distinct items, users."""

    samples: int
    pairs: int
    items: int
    users: int

    @classmethod
    def of(cls, samples_U: Sequence[Samples]) -> Counts:
        """Count a cohort's samples."""
        own = [np.unique(samples.items_S) for samples in samples_U]
        items = len(np.unique(np.concatenate(own)))
        return cls(sum(map(len, samples_U)), sum(map(len, own)), items, len(own))


@dataclass(frozen=True)
class Rates:
    """What was measured: operations a second of a product, bytes read and written a second."""

    flops: float
    cached_bytes: float
    memory_bytes: float

    def __add__(self, other: Rates) -> Rates:
        return Rates(
            self.flops + other.flops,
            self.cached_bytes + other.cached_bytes,
            self.memory_bytes + other.memory_bytes,
        )


@dataclass(frozen=True)
class Needs:
    """Floating-point operations and bytes of one round."""

    flops: float
    bytes: float

    def seconds(self, rates: Rates) -> float:
        """The longer of both at a machine's rates; tables are taken to lie in the cache."""
        return max(self.flops / rates.flops, self.bytes / rates.cached_bytes)


def neumf_needs(counts: Counts, radii: Radii, factors: int) -> Needs:
    """Of NeuMF with three hidden layers."""
    upper = 4 * factors * 2 * factors + 2 * factors * factors
    first = (4 * factors) ** 2
    pair, item, user = 3 * upper, 3 * first, 3 * first
    if radii.shared > 0:
        pair, item = 6 * upper + 5 * first, first
    if radii.private > 0:
        pair, user = pair + 2 * upper, user + 2 * first
    products = counts.pairs * pair + counts.items * item + counts.users * user
    tables = 4 * counts.items * 5 * factors
    return Needs(2.0 * products, counts.samples * SAMPLE_BYTES + 2.0 * tables)


def mf_needs(counts: Counts, radii: Radii, factors: int) -> Needs:
    """Of matrix factorisation."""
    passes = 5 if radii.private > 0 else 3
    row_bytes = 4 * factors
    moved = counts.samples * SAMPLE_BYTES + counts.pairs * 3 * row_bytes
    return Needs(2.0 * counts.pairs * passes * factors, float(moved))


NEEDS: dict[str, Callable[[Counts, Radii, int], Needs]] = {"neumf": neumf_needs, "mf": mf_needs}


def measured_rates() -> Rates:
    """The best of several tries, with as many torch threads as are set."""
    flops = max(_gemm(*shape) for shape in GEMM_SHAPES)
    return Rates(flops, _copy(CACHED_BYTES), _copy(MEMORY_BYTES))


def _gemm(rows: int, inner: int, columns: int) -> float:
    a, b, out = torch.randn(rows, inner), torch.randn(inner, columns), torch.empty(rows, columns)
    return 2.0 * rows * inner * columns / _best(lambda: torch.mm(a, b, out=out))


def _copy(size: int) -> float:
    source, target = torch.ones(size // 4), torch.empty(size // 4)
    return 2.0 * size / _best(lambda: target.copy_(source))


def _best(call: Callable[[], object], tries: int = 10, least_s: float = 0.02) -> float:
    """Seconds a call in the best of some turns of ``least_s`` each."""
    call()
    best = float("inf")
    for _ in range(tries):
        calls, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < least_s:
            call()
            calls += 1
        best = min(best, spent / calls)
    return best
