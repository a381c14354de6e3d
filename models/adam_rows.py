"""Local training of a user's vector and item table by Adam, in matrix factorisation.

Adam's moments start from zero, so a row without a gradient stays where it is to the bit: only
the rows that the user has samples of are worked on. They take part in every step from the first
on, also in those of mini-batches without them, as in Adam on the whole table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from models import optim
from models.losses import sliced_bce
from models.mf import ITEM, USER
from models.types import Samples, Tensors, touched_items


def adam_rows(
    items_ID: Tensor, user_D: Tensor, batches: Sequence[Samples], lr: float
) -> tuple[Tensor, Tensor, float]:
    """One Adam step a mini-batch on its mean BCE; returns table, vector and the mean loss.

    Inputs stay as they are.
    """
    rows_R = touched_items(batches)
    rows = torch.from_numpy(rows_R).to(items_ID.device)
    point: Tensors = {ITEM: items_ID[rows], USER: user_D}
    state, loss = optim.init_state("adam", point), 0.0
    for batch in batches:
        places_S = torch.from_numpy(np.searchsorted(rows_R, batch.items_S)).to(rows.device)
        labels_S = torch.from_numpy(batch.labels_S).to(items_ID)
        gradients, batch_loss = _gradients(point, places_S, labels_S)
        point, state = optim.step("adam", point, gradients, state, lr)
        loss += batch_loss / len(batches)
    return items_ID.index_copy(0, rows, point[ITEM]), point[USER], loss


def _gradients(point: Tensors, places_S: Tensor, labels_S: Tensor) -> tuple[Tensors, float]:
    """Derivatives of the mean BCE by rows and vector, and the loss itself."""
    rows_SD, user_D = point[ITEM][places_S], point[USER]
    scores_S = rows_SD @ user_D
    errors_S = (scores_S.sigmoid() - labels_S) / len(labels_S)
    by_rows_RD = torch.zeros_like(point[ITEM])
    by_rows_RD.index_add_(0, places_S, torch.outer(errors_S, user_D))
    loss = float(sliced_bce(scores_S, labels_S, len(labels_S)))
    return {ITEM: by_rows_RD, USER: errors_S @ rows_SD}, loss
