"""A local step of GPFedRec: SGD on a user's item table, vector and MLP, and a pull to a target.

Source: GPFedRec (arXiv 2305.07866), the local objective BCE + reg · ‖q - r‖² / (M · D) over a
table of M rows. Its step on q at a rate η goes 2 · η · reg / (M · D) of the way to r, and the
public code makes η grow with M, so that the share is the same in any catalogue: ``pull`` here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.base import ScoringModel
from models.losses import sliced_bce
from models.types import Samples, Tensors


@dataclass(frozen=True)
class PulledRates:
    """Learning rates of the item rows and of each private parameter, and the pull."""

    items: float
    private: Mapping[str, float]
    pull: float


def pulled_step(
    model: ScoringModel,
    items_ID: Tensor,
    target_ID: Tensor,
    private: Tensors,
    batch: Samples,
    rates: PulledRates,
) -> tuple[Tensors, float]:
    """One step on a mini-batch's mean BCE; returns new private parameters and the loss before.

    Steps ``items_ID`` in place: q ← q - η ∇BCE - pull · (q - r), with all gradients at the same
    point. The model has one item table.
    """
    (table,) = model.item_tables
    rows_R = np.unique(batch.items_S)
    places = torch.from_numpy(np.searchsorted(rows_R, batch.items_S)).to(items_ID.device)
    rows = torch.from_numpy(rows_R).to(items_ID.device)
    point = {table: items_ID[rows], **private}
    leaves = {n: t.detach().requires_grad_() for n, t in point.items()}
    logits_S = model.logits(leaves, leaves, places)
    loss = sliced_bce(logits_S, torch.from_numpy(batch.labels_S).to(logits_S), len(batch))
    gradients = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    items_ID.lerp_(target_ID, rates.pull)
    items_ID.index_add_(0, rows, gradients[table], alpha=-rates.items)
    stepped = {n: t - rates.private[n] * gradients[n] for n, t in private.items()}
    return stepped, float(loss.detach())
