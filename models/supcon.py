"""Supervised contrastive loss of item rows by their cluster, with its gradient in closed form.

Source: CoFedRec (arXiv 2411.01690) and its public code, after Khosla et al. (arXiv 2004.11362),
Equation 2. With z the rows of unit length, c_ij = z_i · z_j, P_i the n_i other items of i's
cluster, E_ij = exp((c_ij - 1)/τ) for j ≠ i and D_i = Σ_j E_ij + ε, an item's loss is

    -τ/τ₀ · 1/(n_i + ε) · Σ_{j in P_i} ((c_ij - 1)/τ - log D_i).

The loss is a sum over all pairs of items; they are worked on some rows at a time, and as E is
symmetric one pass suffices. Nothing larger than a piece of rows × items is ever held.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EPS = 1e-6
"""ε; the public code has it in both places."""
PIECE_VALUES = 1 << 20
"""Pairs of items held at once: 4 MiB of float32."""


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
    denominators_I, spread_ID = _denominators(z_ID, counts_I * shares_I, at.tau)
    attraction_I = ((sums_ID * z_ID).sum(1) - counts_I) / at.tau
    scale = at.tau / at.base
    losses_I = -scale * shares_I * (attraction_I - counts_I * denominators_I.log())
    by_z_ID = scale / at.tau * (spread_ID - 2 * shares_I[:, None] * sums_ID)
    along_I1 = (by_z_ID * z_ID).sum(1, keepdim=True)
    return losses_I, (by_z_ID - along_I1 * z_ID) / lengths_I1


def _denominators(z_ID: Tensor, parts_I: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """D (I,), and Σ_j (a_i/D_i + a_j/D_j) E_ij z_j (I, D) with a the ``parts``."""
    num_items = len(z_ID)
    denominators_I, spread_ID = z_ID.new_empty(num_items), torch.zeros_like(z_ID)
    size = max(1, PIECE_VALUES // num_items)
    for start in range(0, num_items, size):
        part = slice(start, min(start + size, num_items))
        pairs_BI = z_ID[part] @ z_ID.T
        pairs_BI.sub_(1).div_(tau).exp_()
        own = torch.arange(part.start, part.stop, device=z_ID.device)
        pairs_BI[own - start, own] = 0  # oneself is not among the others
        denominators_I[part] = pairs_BI.sum(1) + EPS
        weights_B1 = (parts_I[part] / denominators_I[part])[:, None]
        spread_ID[part] += weights_B1 * (pairs_BI @ z_ID)
        spread_ID.addmm_(pairs_BI.T, weights_B1 * z_ID[part])
    return denominators_I, spread_ID
