"""PFedRec's local training of a block of users at once: scorer and item rows in turn.

For every mini-batch a user makes two SGD steps, each on a forward pass of its own: on its
linear score function (w, b), then on its copy of the item rows, which meet the new scorer.
With e_n the derivative of the mean BCE by the score of sample n, of item i(n):

    w <- w - η_scorer Σ_n e_n q_i(n),   b <- b - η_scorer Σ_n e_n
    q_i <- q_i - η_items Σ_{n: i(n)=i} e'_n w,   e' at the new (w, b)

Source: PFedRec (arXiv 2301.08143), Algorithm 1 and its public code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from models.local_sgd import Batches
from models.lockstep import LockSteps, Pairs, Step


@dataclass(frozen=True)
class AlternatingRates:
    """Learning rates η of the scorer and of the item rows."""

    scorer: float
    items: float


@dataclass(frozen=True)
class Alternated:
    """Outcome of a block of users."""

    pairs: Pairs
    rows_PD: Tensor
    """Each user's item rows after training; all others are as they were."""
    weights_UD: Tensor
    biases_U: Tensor
    loss: float
    """Sum over users of the mean over mini-batches of the loss before the batch's two steps."""


def alternating_sgd(
    items_ID: Tensor,
    weights_UD: Tensor,
    biases_U: Tensor,
    batches_U: Sequence[Batches],
    rates: AlternatingRates,
) -> Alternated:
    """Train all users of a block in lock-step, each from the same items; inputs stay."""
    steps = LockSteps(batches_U, len(items_ID), items_ID)
    rows_PD = items_ID.index_select(0, steps.pairs.items_P)
    weights_UD, biases_U = weights_UD.clone(), biases_U.clone()
    losses = [_train(step, rows_PD, weights_UD, biases_U, rates) for step in steps]
    return Alternated(steps.pairs, rows_PD, weights_UD, biases_U, steps.loss(losses))


def _train(
    step: Step, rows_PD: Tensor, weights_UD: Tensor, biases_U: Tensor, rates: AlternatingRates
) -> Tensor:
    """Both steps of each user, in place; returns the loss of each mini-batch (V,)."""
    labels, users_N = step.labels, step.users_V.index_select(0, step.labels.users_S)
    rows_ND = rows_PD.index_select(0, step.pairs_N)
    scores_N = _scores(rows_ND, weights_UD.index_select(0, users_N), biases_U, users_N)
    errors_N = labels.errors(scores_N)
    gradients_VD = functional.embedding_bag(
        step.pairs_N, rows_PD, step.starts_V, mode="sum", per_sample_weights=errors_N
    )
    weights_UD.index_add_(0, step.users_V, gradients_VD, alpha=-rates.scorer)
    biases_U.index_add_(0, users_N, errors_N, alpha=-rates.scorer)
    weights_ND = weights_UD.index_select(0, users_N)
    errors_N = labels.errors(_scores(rows_ND, weights_ND, biases_U, users_N))
    # The rate goes into the errors: torch adds rows five times faster without a factor.
    rows_PD.index_add_(0, step.pairs_N, weights_ND.mul_((-rates.items * errors_N)[:, None]))
    return labels.losses(scores_N)


def _scores(rows_ND: Tensor, weights_ND: Tensor, biases_U: Tensor, users_N: Tensor) -> Tensor:
    """Score of each sample (N,)."""
    return (rows_ND * weights_ND).sum(1).add_(biases_U.index_select(0, users_N))
