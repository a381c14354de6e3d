"""A user's own interactions as a graph: the user in the middle, an edge to each of its items.

It is the part of the interaction graph that a user knows. A hop over it takes the mean over the
neighbours, and the mean of layers 0 and 1 follows: the user becomes (u + mean of its items) / 2. An
item that the user has no edge to has no neighbour here and stays as it is.

While an edge is predicted in training it is left out of the hop, as in FISM (Kabbur et al., KDD
2013): with it, a positive would be told from a negative by its own embedding in the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.types import IntArray, Samples


@dataclass(frozen=True)
class Triples:
    """Pairs of a positive and a negative of one user, over the distinct items of its samples."""

    positives_P: Tensor
    negatives_P: Tensor
    weights_P: Tensor
    """1 over the number of pairs of the positive: each positive of the samples counts once."""
    own_R: Tensor
    """1 for an item of the user, else 0."""


def star_scores(table_ID: Tensor, users_UD: Tensor, own_UI: Tensor) -> Tensor:
    """Scores (U, I) after a hop; ``own`` has 1 for the users' items, ``table`` may be (U, I, D)."""
    counts_U1 = own_UI.sum(1, keepdim=True)
    means_UD = (own_UI[:, None] @ table_ID)[:, 0] / counts_U1.clamp(min=1)
    hopped_UD = (users_UD + means_UD) / 2
    return (table_ID @ hopped_UD[:, :, None])[:, :, 0]


def bpr_gradients(
    rows_RD: Tensor, user_D: Tensor, triples: Triples, reg: float
) -> tuple[Tensor, Tensor, float]:
    """Gradients of a user's loss by its rows and its vector, and the loss.

    The loss is the mean over positives of the mean of -log σ(s⁺ - s⁻) over its negatives, plus
    ``reg`` times half the squared norms of the vector and the rows.
    """
    rows_RD, user_D = rows_RD.detach().requires_grad_(), user_D.detach().requires_grad_()
    positives_PD, negatives_PD = rows_RD[triples.positives_P], rows_RD[triples.negatives_P]
    others = (triples.own_R.sum() - 1).clamp(min=1)
    means_PD = (triples.own_R @ rows_RD - positives_PD) / others
    gaps_P = ((user_D + means_PD) / 2 * (positives_PD - negatives_PD)).sum(1)
    shares_P = triples.weights_P / triples.weights_P.sum()
    ranked = -(shares_P * functional.logsigmoid(gaps_P)).sum()
    loss = ranked + reg / 2 * ((rows_RD**2).sum() + (user_D**2).sum())
    by_rows, by_user = torch.autograd.grad(loss, (rows_RD, user_D))
    return by_rows, by_user, float(loss.detach())


def triples_of(samples: Samples, rows_R: IntArray, own_R: IntArray, like: Tensor) -> Triples:
    """Each negative of the samples with the positive it was drawn for, the last one before it.

    ``rows`` are the sorted distinct items that positions are counted in, ``own`` the user's.
    """
    positive_S = samples.labels_S > 0
    place_S = np.where(positive_S, np.arange(len(samples)), -1)
    source_S = np.maximum.accumulate(place_S)
    pairs_P = np.flatnonzero(~positive_S & (source_S >= 0))
    counts_S = np.bincount(source_S[pairs_P], minlength=len(samples))
    positions_S = torch.from_numpy(np.searchsorted(rows_R, samples.items_S)).to(like.device)
    sources_P = source_S[pairs_P]
    return Triples(
        positions_S[torch.from_numpy(sources_P).to(positions_S.device)],
        positions_S[torch.from_numpy(pairs_P).to(positions_S.device)],
        torch.from_numpy(1 / counts_S[sources_P]).to(like),
        torch.from_numpy(np.isin(rows_R, own_R)).to(like),
    )
