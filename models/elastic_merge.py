"""FedEM's elastic merge: how much of the server's table a user takes, item by item, is learnt.

A private adapter reads a user's row q and its distance to the server's row g and gives one number
ρ = σ(MLP(q, g - q)); the merged row is q + ρ (g - q). Training scores with merged rows: each
mini-batch steps the adapter, then rows and user vector on a forward pass of their own.
Source: FedEM (arXiv 2508.12386) and its public code, whose MLP has widths 32, 16, 8 and 1 on 16
columns: 2D, D, D/2, 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from models import optim
from models.losses import sliced_bce
from models.mf import ITEM, USER
from models.types import Samples, Tensors, touched_items

NAMES = tuple(f"adapter_{kind}{layer}" for layer in range(3) for kind in "wb")


@dataclass(frozen=True)
class ElasticRates:
    """Learning rates of vector and table, and of the adapter."""

    embeddings: float
    adapter: float


def init_adapter(factors: int, rng: np.random.Generator) -> Tensors:
    """Draw ``adapter_w{k}`` (out, in) and ``adapter_b{k}`` (out,), uniform in ±1/√in."""
    widths, drawn = (2 * factors, factors, factors // 2, 1), Tensors()
    for layer, (inputs, outputs) in enumerate(pairwise(widths)):
        bound = 1 / math.sqrt(inputs)
        both = rng.uniform(-bound, bound, (outputs, inputs + 1)).astype(np.float32)
        drawn[f"adapter_w{layer}"] = torch.from_numpy(np.ascontiguousarray(both[:, :-1]))
        drawn[f"adapter_b{layer}"] = torch.from_numpy(np.ascontiguousarray(both[:, -1]))
    return drawn


def merged(own_RD: Tensor, server_RD: Tensor, adapter: Tensors) -> Tensor:
    """Merged rows (R, D); or of users (U, R, D), with a leading dimension on the adapter too."""
    apart_RD = server_RD - own_RD
    hidden_RH = torch.cat([own_RD, apart_RD], dim=-1)
    for layer in range(3):
        hidden_RH = hidden_RH.relu() if layer else hidden_RH
        weights, biases = adapter[f"adapter_w{layer}"], adapter[f"adapter_b{layer}"]
        hidden_RH = hidden_RH @ weights.mT + biases.unsqueeze(-2)
    return own_RD + hidden_RH.sigmoid() * apart_RD


def elastic_adam(
    items_ID: Tensor,
    server_ID: Tensor,
    private: Tensors,
    batches: Sequence[Samples],
    rates: ElasticRates,
) -> tuple[Tensor, Tensors, float]:
    """Two Adam steps a mini-batch, from zero moments.

    Returns the table before it is merged, vector and adapter, and the mean of the losses that the
    second steps start from. Rows without a sample stay (``models.adam_rows``), and so do inputs.
    """
    rows_R = touched_items(batches)
    rows = torch.from_numpy(rows_R).to(items_ID.device)
    point: Tensors = {ITEM: items_ID[rows], USER: private[USER]}
    adapter, server_RD, loss = {n: private[n] for n in NAMES}, server_ID[rows], 0.0
    states = optim.init_state("adam", point), optim.init_state("adam", adapter)
    for batch in batches:
        places_S = torch.from_numpy(np.searchsorted(rows_R, batch.items_S)).to(rows.device)
        labels_S = torch.from_numpy(batch.labels_S).to(items_ID)
        args = (server_RD, places_S, labels_S)
        by_adapter, _ = _gradients(point | adapter, NAMES, *args)
        adapter, moments = optim.step("adam", adapter, by_adapter, states[1], rates.adapter)
        by_point, batch_loss = _gradients(point | adapter, (ITEM, USER), *args)
        point, state = optim.step("adam", point, by_point, states[0], rates.embeddings)
        states = state, moments
        loss += batch_loss / len(batches)
    return items_ID.index_copy(0, rows, point[ITEM]), {USER: point[USER], **adapter}, loss


def _gradients(
    point: Tensors, wanted: Sequence[str], server_RD: Tensor, places_S: Tensor, labels_S: Tensor
) -> tuple[Tensors, float]:
    """Derivatives of the mean BCE through merged rows, and the loss itself."""
    leaves = {n: t.detach().requires_grad_(n in wanted) for n, t in point.items()}
    rows_SD = merged(leaves[ITEM][places_S], server_RD[places_S], leaves)
    loss = sliced_bce(rows_SD @ leaves[USER], labels_S, len(labels_S))
    gradients = torch.autograd.grad(loss, [leaves[n] for n in wanted])
    return dict(zip(wanted, gradients, strict=True)), float(loss.detach())
