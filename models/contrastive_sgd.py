"""CoFedRec's local step: the linear scorer, then the item rows, then the rows by their clusters.

Source: CoFedRec (arXiv 2411.01690) and its public code. A mini-batch makes two SGD steps, each
on a forward pass of its own, as PFedRec's: on the scorer (w, b), then on the item table q by

    q ← q - η_q ∇ mean BCE - κ ∇ Σ_i L_i

with the contrastive loss L_i of each item (``models.supcon``), both at the same q. The scorer
has no part in L. In the public code η_q = 80 · M · η and κ = 80 · η · λ for M items, learning rate
η of the scorer and weight λ of the mean over items, so κ does not hang on the catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.linear import BIAS, WEIGHT
from models.losses import sliced_bce
from models.supcon import Temperatures, supcon
from models.types import Samples, Tensors


@dataclass(frozen=True)
class ContrastiveRates:
    """Learning rates of the scorer and of the item rows, and κ with its temperatures."""

    scorer: float
    items: float
    contrast: float
    at: Temperatures


@dataclass(frozen=True)
class Clusters:
    """The items whose contrastive loss is summed, the cluster of each, and what a term counts."""

    items_R: Tensor
    labels_R: Tensor
    scale: float


def contrastive_step(
    items_ID: Tensor,
    scorer: Tensors,
    batch: Samples,
    clusters: Clusters | None,
    rates: ContrastiveRates,
) -> tuple[Tensors, float, float]:
    """Both steps of a mini-batch, the items' in place.

    Returns the new scorer, the BCE before its step, and the mean contrastive loss of the items
    (0 without clusters).
    """
    places = torch.from_numpy(batch.items_S).to(items_ID.device)
    labels_S = torch.from_numpy(batch.labels_S).to(items_ID)
    rows_SD = items_ID[places]
    loss, errors_S = _errors(rows_SD, labels_S, scorer)
    weight_D = scorer[WEIGHT] - rates.scorer * (errors_S @ rows_SD)
    stepped = {WEIGHT: weight_D, BIAS: scorer[BIAS] - rates.scorer * errors_S.sum()}
    errors_S = _errors(rows_SD, labels_S, stepped)[1]
    contrast = 0.0
    if clusters is not None and rates.contrast > 0:
        losses_R, gradient_RD = supcon(items_ID[clusters.items_R], clusters.labels_R, rates.at)
        contrast = float(losses_R.mean())
        items_ID.index_add_(
            0, clusters.items_R, gradient_RD, alpha=-rates.contrast * clusters.scale
        )
    items_ID.index_add_(0, places, torch.outer(errors_S, weight_D), alpha=-rates.items)
    return stepped, loss, contrast


def _errors(rows_SD: Tensor, labels_S: Tensor, scorer: Tensors) -> tuple[float, Tensor]:
    """Mean BCE of the samples, and its derivative by each score."""
    scores_S = rows_SD @ scorer[WEIGHT] + scorer[BIAS]
    loss = sliced_bce(scores_S, labels_S, len(labels_S))
    return float(loss), (scores_S.sigmoid() - labels_S) / len(labels_S)
