"""SAM gradients of a ragged block of users in matrix factorisation; exact, see ``models.sam``.

With p a user's vector and e_i the derivative of the loss by the score of item i, the gradient
of row i is e_i · p. Its norm over all rows is ‖e‖·‖p‖, so the shared perturbation moves the
score of item i by ρ·‖p‖²·e_i / (‖e‖·‖p‖): the perturbed pass needs the scores only and
touches no item row.

An adaptive perturbation weighs the entries of item i's row q_i by T_i = |q_i| + η. With
a_i = Σ_d T_id²·p_d² the norm is ‖T g‖ = √(Σ_i e_i²·a_i), and the score of item i moves by
ρ·e_i·a_i / ‖T g‖; a_i is a score itself, of squared vectors (``Layout.squared_scores``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from models.losses import Loss
from models.mf_layouts import Layout, layout_of
from models.ranked import Ranked, ranked
from models.reduce_samples import FlatSamples, flatten_samples
from models.sam import ADAPTIVE_ETA, NORM_EPS, Radii
from models.tables import sum_tables
from models.types import Samples

MAX_SAMPLES = 65536
"""Samples worked on together, so that their rows stay in cache, and their cells as well:
``layout_of`` allows a bounded number a sample."""

LayoutOf = Callable[[FlatSamples, Tensor], Layout]


@dataclass(frozen=True)
class Labelled:
    """Labels and weights of a block's samples, as tensors."""

    num_users: int
    users_S: Tensor
    signs_S: Tensor
    """-1 for a positive, 1 for a negative sample."""
    weights_S: Tensor

    def losses(self, scores_S: Tensor) -> Tensor:
        """Each user's loss (U,)."""
        # softplus in torch is cut off at 20; −logsigmoid(−s) is exact everywhere.
        losses_S = functional.logsigmoid(-self.signs_S * scores_S).mul_(-self.weights_S)
        return losses_S.new_zeros(self.num_users).index_add_(0, self.users_S, losses_S)

    def errors(self, scores_S: Tensor) -> Tensor:
        """Derivative of the losses by the scores (S,)."""
        # One sigmoid on the label's side: no cancellation where a score is far out.
        return (self.signs_S * scores_S).sigmoid_().mul_(self.weights_S).mul_(self.signs_S)


def labelled(flat: FlatSamples, like: Tensor) -> Labelled:
    """Tensors of the dtype and on the device of ``like``."""
    return Labelled(
        len(flat.lengths_U),
        torch.from_numpy(flat.users_S).to(like.device),
        torch.from_numpy(1 - 2 * flat.labels_S).to(like),
        torch.from_numpy(flat.weights_S).to(like),
    )


def _of_samples(flat: FlatSamples, loss: Loss, like: Tensor) -> Labelled | Ranked:
    return labelled(flat, like) if loss.ranking is None else ranked(flat, loss.ranking, like)


def sam_block(
    items_ID: Tensor,
    users_UD: Tensor,
    samples_U: Sequence[Samples],
    loss: Loss,
    radii: Radii,
    layout: LayoutOf = layout_of,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by the items (I, D), summed, by the users (U, D), and losses (U, 3)."""
    parts = []
    for part in _parts(samples_U):
        flat = flatten_samples(samples_U[part], len(items_ID), loss.slice_size)
        labels = _of_samples(flat, loss, items_ID)
        parts.append(_sam(layout(flat, items_ID), labels, users_UD[part], radii))
    shared, private, losses = zip(*parts, strict=True)
    return sum_tables(shared), torch.cat(private), torch.cat(losses)


def _parts(samples_U: Sequence[Samples]) -> Iterator[slice]:
    """Consecutive users with at most ``MAX_SAMPLES`` samples; a larger user stands alone."""
    first, total = 0, 0
    for user, samples in enumerate(samples_U):
        if user > first and total + len(samples) > MAX_SAMPLES:
            yield slice(first, user)
            first, total = user, 0
        total += len(samples)
    yield slice(first, len(samples_U))


def _sam(
    layout: Layout, labels: Labelled | Ranked, users_UD: Tensor, radii: Radii
) -> tuple[Tensor, Tensor, Tensor]:
    scores_S = layout.scores(users_UD)
    losses_U3 = users_UD.new_full((len(users_UD), 3), torch.nan)
    losses_U3[:, 0] = labels.losses(scores_S)
    errors_S = labels.errors(scores_S)
    spread = shared_spread = layout.spread(errors_S)
    private_UD = layout.user_gradient(spread)
    if radii.shared > 0:
        if radii.adaptive:
            moves_S = _adaptive_moves(layout, labels, errors_S, users_UD, radii.shared)
        else:
            moves_S = _item_moves(layout, labels, spread, users_UD, radii.shared)
        moved_S = scores_S + moves_S
        losses_U3[:, 1] = labels.losses(moved_S)
        shared_spread = layout.spread(labels.errors(moved_S))
    if radii.private > 0:
        moved_UD = _perturb_users(users_UD, private_UD, radii.private, radii.adaptive)
        moved_S = layout.scores(moved_UD)
        losses_U3[:, 2] = labels.losses(moved_S)
        private_UD = layout.user_gradient(layout.spread(labels.errors(moved_S)))
    return layout.item_gradient(shared_spread, users_UD), private_UD, losses_U3


def _item_moves(
    layout: Layout, labels: Labelled | Ranked, spread: Tensor, users_UD: Tensor, radius: float
) -> Tensor:
    """How far each user's own perturbation of the item rows moves its scores (S,)."""
    user_norms_U1: Tensor = torch.linalg.vector_norm(users_UD, dim=1, keepdim=True)
    error_norms_U1, errors_S = layout.by_pair(spread)
    scale_U1 = radius / (error_norms_U1 * user_norms_U1 + NORM_EPS) * user_norms_U1.square()
    return scale_U1[:, 0].index_select(0, labels.users_S) * errors_S


def _adaptive_moves(
    layout: Layout, labels: Labelled | Ranked, errors_S: Tensor, users_UD: Tensor, radius: float
) -> Tensor:
    """The same for adaptive perturbations: ρ·e·a / √(Σ e²·a) over a user's distinct items."""
    # √a is the same for all samples of a pair, so √a·e may be summed by pair like e itself.
    roots_S = layout.squared_scores(users_UD, ADAPTIVE_ETA).sqrt_()
    norms_U1, weighted_S = layout.by_pair(layout.spread(errors_S * roots_S))
    scale_U1 = radius / (norms_U1 + NORM_EPS)
    return scale_U1[:, 0].index_select(0, labels.users_S) * weighted_S * roots_S


def _perturb_users(users_UD: Tensor, gradients_UD: Tensor, radius: float, adaptive: bool) -> Tensor:
    """Move each user's vector along its own gradient by ``radius``."""
    if adaptive:
        sizes_UD = users_UD.abs() + ADAPTIVE_ETA
        moves_UD = sizes_UD * gradients_UD
        norms_U1: Tensor = torch.linalg.vector_norm(moves_UD, dim=1, keepdim=True)
        return users_UD + radius / (norms_U1 + NORM_EPS) * sizes_UD * moves_UD
    norms_U1 = torch.linalg.vector_norm(gradients_UD, dim=1, keepdim=True)
    return users_UD + radius / (norms_U1 + NORM_EPS) * gradients_UD
