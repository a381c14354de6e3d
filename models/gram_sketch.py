"""Co-occurrence counts from their count sketch and the items' exact counts.

Most of a count is what its items' counts say, so the sketch has to tell the rest only. A sketch is
linear: that of the products cᵢcⱼ, made here, is subtracted times the κ that fits best, and the
rest r of every pair is estimated and shrunk towards zero: counts of rare pairs vary little, and
an estimate is as noisy for them as for others. With a variance φ κcᵢcⱼ of r, as of an
overdispersed count, and the variance s² of the noise, the factor is φ κcᵢcⱼ / (φ κcᵢcⱼ + s²).

The sketch has both variances: the squared norm of a row is, without bias, that of all rests
(Alon, Matias & Szegedy, STOC 1996), and what the estimates have beyond it is noise.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from models.count_sketch import CountSketch
from models.gram import item_pairs, num_pairs, places
from models.types import IntArray

Piece = tuple[IntArray, Tensor, Tensor]
"""Places of pairs, the products of their items' counts, and the smaller of the two."""


def estimated_pairs(sketch: CountSketch, sums_RW: Tensor, counts_I: Tensor) -> Tensor:
    """Counts of all pairs (P,) in float64, each from zero to the smaller of its items' counts."""
    rest_RW, counts_I = sums_RW.double(), counts_I.double()
    products_RW, total = torch.zeros_like(rest_RW), 0.0
    for keys, products, _ in _pieces(counts_I):
        sketch.add(products_RW, keys, products)
        total += float(products.sum())
    if not total:
        return counts_I.new_zeros(num_pairs(len(counts_I)))
    kappa = float((rest_RW * products_RW).sum() / (products_RW**2).sum())
    rest_RW = rest_RW - kappa * products_RW
    pairs_P, squares = counts_I.new_empty(num_pairs(len(counts_I))), 0.0
    for keys, _, _ in _pieces(counts_I):
        found = sketch.estimates(rest_RW, keys)
        pairs_P[keys[0] : keys[-1] + 1] = found
        squares += float(found.square().sum())
    squared_norm = float((rest_RW**2).sum()) / sketch.rows
    noise = max(0.0, (squares - squared_norm) / len(pairs_P))
    for keys, products, smaller in _pieces(counts_I):
        rest = pairs_P[keys[0] : keys[-1] + 1]
        spread = squared_norm / total * products
        factor = spread / (spread + noise).clamp(min=torch.finfo(torch.float64).tiny)
        rest.mul_(factor).add_(products, alpha=kappa)
        torch.minimum(rest.clamp_(min=0), smaller, out=rest)
    return pairs_P


def _pieces(counts_I: Tensor) -> Iterator[Piece]:
    for lower, upper in item_pairs(np.arange(len(counts_I))):
        ones, others = (counts_I[torch.from_numpy(i).to(counts_I.device)] for i in (lower, upper))
        yield places(lower, upper), ones * others, torch.minimum(ones, others)
