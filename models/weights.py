"""Loss weights of a ragged block of users, as two matrices over its distinct items.

A user's loss is a sum over samples of ``weight · bce(score, label)``, and samples of one
item share their score. So the loss of a user is a sum over items of
``positive · softplus(-score) + negative · softplus(score)``, with weights that are zero for
items the user has no sample of. Two (U, R) matrices hold a whole block; they are small
beside item rows, and turn its passes into matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.losses import sample_weights
from models.types import IntArray, Samples, block_items


@dataclass(frozen=True)
class BlockWeights:
    """``rows_R``: the block's distinct items, ascending; weights of each user's samples (U, R)."""

    rows_R: Tensor
    positive_UR: Tensor
    """Summed weight of a user's samples of the item with label 1."""
    negative_UR: Tensor
    """Summed weight of a user's samples of the item with label 0."""

    def losses(self, scores_UR: Tensor) -> Tensor:
        """Each user's loss (U,)."""
        positive_UR = self.positive_UR * functional.softplus(-scores_UR)
        return (positive_UR + self.negative_UR * functional.softplus(scores_UR)).sum(1)

    def errors(self, scores_UR: Tensor) -> Tensor:
        """Derivative of each user's loss by its scores (U, R)."""
        # Either label has its own sigmoid: no cancellation where a score is far out.
        negative_UR = self.negative_UR * torch.sigmoid(scores_UR)
        return negative_UR - self.positive_UR * torch.sigmoid(-scores_UR)


def block_weights(
    samples_U: Sequence[Samples], num_items: int, loss_slice: int, dtype: torch.dtype
) -> BlockWeights:
    """Weights of a block's samples, each weighted as in ``models.losses.sliced_bce``.

    Raises:
        ValueError: when an item index is outside the catalogue.

    """
    items_S = block_items(samples_U, num_items)
    labels_S = np.concatenate([samples.labels_S for samples in samples_U]).astype(np.float64)
    weights_S = np.concatenate([sample_weights(len(s), loss_slice) for s in samples_U])
    rows_R, columns_S = _distinct(items_S, num_items)
    shape = (len(samples_U), len(rows_R))
    cells_S = np.repeat(np.arange(shape[0]) * shape[1], [len(s) for s in samples_U]) + columns_S
    positive, negative = (
        np.bincount(cells_S, weights_S * share_S, shape[0] * shape[1]).reshape(shape)
        for share_S in (labels_S, 1.0 - labels_S)
    )
    return BlockWeights(
        torch.from_numpy(rows_R),
        torch.from_numpy(positive).to(dtype),
        torch.from_numpy(negative).to(dtype),
    )


def _distinct(items_S: IntArray, num_items: int) -> tuple[IntArray, IntArray]:
    """Distinct items, ascending, and each sample's position among them, without sorting."""
    present_I = np.zeros(num_items, dtype=bool)
    present_I[items_S] = True
    position_I = np.cumsum(present_I) - 1
    return np.flatnonzero(present_I), position_I[items_S]
