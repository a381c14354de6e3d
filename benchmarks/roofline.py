"""The arithmetic a NeuMF round needs after all exact savings, and what a core can do.

A distinct (user, item) pair costs, in multiply-adds, with layers 8F, 4F, 2F, F: the first
layer's item half (E·H, once for the base and the private pass of a whole block, so not
counted there), the layers above it, and their products backwards.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from models.sam import Radii
from models.types import Samples

FACTORS = 32


def needed_flops(samples_U: Sequence[Samples], radii: Radii) -> float:
    """Floating-point operations of one round: two for each multiply-add."""
    pairs = sum(len(np.unique(samples.items_S)) for samples in samples_U)
    width, half = 4 * FACTORS, 4 * FACTORS
    first = half * width
    upper = width * (2 * FACTORS) + 2 * FACTORS * FACTORS
    base = 2 * upper  # forward, and backward to the first layer's output
    if radii.shared > 0:
        # weight and row gradients of the base pass, then a whole pass at the moved weights
        base += upper + 2 * first
        base += 3 * upper + 3 * first
    else:
        base += upper
    if radii.private > 0:
        base += 2 * upper
    return 2.0 * pairs * base


def gemm_flops(rows: int = 512, width: int = 128, repeats: int = 200) -> float:
    """Floating-point operations a second of a product of the kernel's own size, one thread."""
    a, b = torch.randn(rows, width), torch.randn(width, width)
    out = torch.empty(rows, width)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(repeats):
            torch.mm(a, b, out=out)
        best = min(best, (time.perf_counter() - start) / repeats)
    return 2.0 * rows * width * width / best
