"""Local mini-batch SGD of a block of users: its contract, and the way that suits any model.

Each user starts from the shared parameters and its own private ones and makes a step a
mini-batch on both; a mini-batch's loss is the mean BCE of its samples, plus, for a positive
``SGDRates.proximal`` μ, FedProx's term μ/2 · ‖w - w_t‖² of the copy w of the shared w_t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from models import optim
from models.losses import Loss
from models.sam import Radii, sam_gradients
from models.tables import add_table, row_lengths, row_table, scale_rows
from models.types import Samples, Tensors, touched_items

if TYPE_CHECKING:
    from models.base import ScoringModel

Batches = Sequence[Samples]
"""One user's mini-batches, at least one, in the order of its steps."""


@dataclass(frozen=True)
class SGDRates:
    """Learning rates of the shared and of the private parameters."""

    shared: float
    private: float
    proximal: float = 0.0
    """Weight μ of μ/2 · ‖w - w_t‖², w_t the shared parameters as received; 0 leaves it out."""


@dataclass(frozen=True)
class LocallyTrained:
    """Outcome of a block: ``moved`` is the sum over users of weight · (local - shared)."""

    moved: Tensors
    private: Tensors
    """Private parameters after training (U, …)."""
    loss: float
    """Sum over users of the mean loss of a user's mini-batches."""
    lengths: Tensors | None = None
    """Only where item rows are weighed by their own movement: the sum over users of the L1 norm
    of each row's movement, a (I,) tensor an item table; ``moved`` then has norm · movement."""


def with_proximal(
    gradients: Tensors, local: Tensors, received: Tensors, proximal: float
) -> Tensors:
    """Gradients of the loss plus μ/2 · ‖w - w_t‖²: each has μ · (w - w_t) added to it."""
    if proximal == 0:
        return gradients
    return {n: g + proximal * (local[n] - received[n]) for n, g in gradients.items()}


def sgd_alone(
    model: ScoringModel, shared: Tensors, private: Tensors, batches: Batches, rates: SGDRates
) -> tuple[Tensors, Tensors, float]:
    """One user on a copy of all shared parameters, by differentiation: the readable reference.

    Returns the copy, the private parameters, and the mean loss of the mini-batches.
    """
    local, loss = shared, 0.0
    for batch in batches:
        user = sam_gradients(model, local, private, batch, Loss(len(batch)), Radii())
        gradient = with_proximal(user.shared, local, shared, rates.proximal)
        local = optim.step("sgd", local, gradient, {}, rates.shared)[0]
        private = optim.step("sgd", private, user.private, {}, rates.private)[0]
        loss += float(user.losses[0]) / len(batches)
    return local, private, loss


def rowwise_sgd(
    model: ScoringModel,
    shared: Tensors,
    private_block: Tensors,
    batches_U: Sequence[Batches],
    weights_U: Sequence[float],
    rates: SGDRates,
    *,
    by_length: bool = False,
) -> LocallyTrained:
    """Train user by user, each on the rows of the item tables that it has samples of.

    A row without a sample has no gradient and SGD leaves it where it is, so the movement
    of the user's own rows is all there is to add. That holds with a proximal term as well: it
    is zero for a row that has not moved.
    """
    moved = {n: torch.zeros_like(t) for n, t in shared.items()}
    private_out, loss = {n: t.clone() for n, t in private_block.items()}, 0.0
    lengths = {n: shared[n].new_zeros(len(shared[n])) for n in model.item_tables}
    for user, (batches, weight) in enumerate(zip(batches_U, weights_U, strict=True)):
        own = {n: t[user : user + 1] for n, t in private_block.items()}
        user_moved, private, user_loss = _train_user(model, shared, own, batches, rates)
        for name, tensor in user_moved.items():
            if by_length and name in lengths:
                own_I = row_lengths(tensor)
                lengths[name] += own_I
                add_table(moved[name], scale_rows(tensor, own_I))
            else:
                add_table(moved[name], weight * tensor)
        for name, tensor in private.items():
            private_out[name][user] = tensor[0]
        loss += user_loss
    return LocallyTrained(moved, private_out, loss, lengths if by_length else None)


def _train_user(
    model: ScoringModel, shared: Tensors, private: Tensors, batches: Batches, rates: SGDRates
) -> tuple[Tensors, Tensors, float]:
    """Movement, private parameters and mean loss of a block of one user."""
    rows_R = touched_items(batches)
    rows = torch.from_numpy(rows_R).to(next(iter(shared.values())).device)
    tables = model.item_tables
    start = {n: t.index_select(0, rows) if n in tables else t for n, t in shared.items()}
    local, loss = start, 0.0
    for batch in batches:
        own = [Samples(np.searchsorted(rows_R, batch.items_S), batch.labels_S)]
        block = model.block_gradients(local, private, own, Loss(len(batch)), Radii())
        gradients = with_proximal(
            {n: t.to_dense() for n, t in block.shared.items()}, local, start, rates.proximal
        )
        local = optim.step("sgd", local, gradients, {}, rates.shared)[0]
        private = optim.step("sgd", private, block.private, {}, rates.private)[0]
        loss += float(block.losses[0, 0]) / len(batches)
    moved = {n: t - start[n] for n, t in local.items()}
    for name in tables:
        moved[name] = row_table(rows, moved[name], len(shared[name]))
    return moved, private, loss
