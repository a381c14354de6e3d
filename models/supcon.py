"""Supervised contrastive loss of item rows by their cluster, with its gradient in closed form.

Source: CoFedRec (arXiv 2411.01690) and its public code, after Khosla et al. (arXiv 2004.11362),
Equation 2. With z the rows of unit length, c_ij = z_i · z_j, P_i the n_i other items of i's
cluster, E_ij = exp((c_ij - 1)/τ) for j ≠ i and D_i = Σ_j E_ij + ε, an item's loss is

    -τ/τ₀ · 1/(n_i + ε) · Σ_{j in P_i} ((c_ij - 1)/τ - log D_i).

The loss is a sum over all pairs of items. They are worked block of items by block: E is symmetric,
so one of the two blocks of a pair of different ones is computed, and serves twice. All blocks are
kept from the sums D to the gradient while they fit; in a larger catalogue they are computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from torch import Tensor

EPS = 1e-6
"""ε; the public code has it in both places."""
BLOCK_ITEMS = 512
"""Items of a block: 1 MiB for the float32 values of a pair of blocks."""
KEPT_VALUES = 1 << 24
"""Values of E that are kept: 64 MiB of float32, for 5,600 items or so."""


@dataclass(frozen=True)
class Temperatures:
    """τ, which divides the cosines, and τ₀, over which τ scales the loss."""

    tau: float
    base: float


def supcon(rows_ID: Tensor, labels_I: Tensor, at: Temperatures) -> tuple[Tensor, Tensor]:
    """Loss of each item (I,) and the gradient of their sum by the rows (I, D).

    Items alone in their cluster have no loss of their own, and are still among the others'.
    """
    lengths_I1 = rows_ID.norm(dim=1, keepdim=True).clamp(min=1e-12)
    z_ID = rows_ID / lengths_I1
    clusters, own_I = torch.unique(labels_I, return_inverse=True)
    sums_KD = z_ID.new_zeros(len(clusters), z_ID.shape[1]).index_add_(0, own_I, z_ID)
    counts_I = torch.bincount(own_I, minlength=len(clusters)).to(z_ID)[own_I] - 1
    shares_I = 1 / (counts_I + EPS)
    sums_ID = sums_KD[own_I] - z_ID  # Σ over the others of the cluster
    denominators_I, spread_ID = _spread(z_ID, counts_I * shares_I, at.tau)
    attraction_I = ((sums_ID * z_ID).sum(1) - counts_I) / at.tau
    scale = at.tau / at.base
    losses_I = -scale * shares_I * (attraction_I - counts_I * denominators_I.log())
    by_z_ID = scale / at.tau * (spread_ID - 2 * shares_I[:, None] * sums_ID)
    along_I1 = (by_z_ID * z_ID).sum(1, keepdim=True)
    return losses_I, (by_z_ID - along_I1 * z_ID) / lengths_I1


def _spread(z_ID: Tensor, parts_I: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """D (I,), and Σ_j (a_i/D_i + a_j/D_j) E_ij z_j (I, D) with a the ``parts``."""
    kept = len(z_ID) * (len(z_ID) + BLOCK_ITEMS) // 2 <= KEPT_VALUES
    blocks = list(_blocks(z_ID, tau)) if kept else None
    denominators_I = torch.full_like(parts_I, EPS)
    for rows, columns, pairs_BC in blocks or _blocks(z_ID, tau):
        denominators_I[rows] += pairs_BC.sum(1)
        if rows != columns:
            denominators_I[columns] += pairs_BC.sum(0)
    weights_I, spread_ID = parts_I / denominators_I, torch.zeros_like(z_ID)
    for rows, columns, pairs_BC in blocks or _blocks(z_ID, tau):
        pairs_BC.mul_(weights_I[rows, None] + weights_I[columns])
        spread_ID[rows].addmm_(pairs_BC, z_ID[columns])
        if rows != columns:
            spread_ID[columns].addmm_(pairs_BC.T, z_ID[rows])
    return denominators_I, spread_ID


def _blocks(z_ID: Tensor, tau: float) -> Iterator[tuple[slice, slice, Tensor]]:
    """E (B, C) of every pair of blocks of items, once; each item with itself counts as 0."""
    # Powers of 2, which are computed twice as fast as those of e: e^((c - 1)/τ) = 2^(s·c - s).
    scale = 1 / (tau * math.log(2))
    scaled_ID, minus_1 = scale * z_ID, z_ID.new_tensor(-scale)
    parts = [slice(i, min(i + BLOCK_ITEMS, len(z_ID))) for i in range(0, len(z_ID), BLOCK_ITEMS)]
    for rows, columns in combinations_with_replacement(parts, 2):
        pairs_BC = torch.addmm(minus_1, scaled_ID[rows], z_ID[columns].T).exp2_()
        if rows == columns:
            pairs_BC.fill_diagonal_(0)
        yield rows, columns, pairs_BC
