"""A user's training loss: from the scores of its samples to a number, and its derivative.

Weights of samples follow FedRecGEL's public training code: the binary cross-entropy is the sum
over slices of 128 consecutive samples of a slice's mean, so a sample weighs one over the length
of its slice, and a user's loss grows with the number of slices.

Ranking losses compare each positive with its own negatives, those that follow it
(``client_app.negatives``). A positive's term weighs what its samples weigh together in the
cross-entropy: the weights of a user sum to its number of slices whatever the loss. With N
negatives, s of the positive and s_1 … s_N of its negatives, the term is

* ``bpr``: mean over j of -log σ(s - s_j) (Rendle et al., BPR, UAI 2009, arXiv 1205.2618;
  its maximum over pairs, without the regularisation);
* ``softmax``: -log(exp s / (exp s + Σ_j exp s_j)) = -log σ(s - log Σ_j exp s_j), the sampled
  softmax without a correction by the negatives' probabilities: they are drawn uniformly, so
  that log Q is the same for all of them.

With one negative both are the same. At equal scores dL/ds sums up in absolute value to one per
unit of weight in ``bpr``, to 2N / (N + 1) in ``softmax``, to one half in the cross-entropy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from models.types import FloatArray

LossName = Literal["bce", "bpr", "softmax"]


@dataclass(frozen=True)
class Ranking:
    """A loss of positives beside their negatives: scores (P, 1 + N), the positive's first."""

    terms: Callable[[Tensor], Tensor]
    """Each positive's loss (P,); differentiable."""
    derivatives: Callable[[Tensor], Tensor]
    """Of each term by its own scores (P, 1 + N); rows sum to zero."""


@dataclass(frozen=True)
class Loss:
    """What a user's samples cost: the kind of loss, and how samples are weighed."""

    slice_size: int = 128
    """Samples a slice, at least 1: a sample weighs one over its slice's length."""
    name: LossName = "bce"

    @property
    def ranking(self) -> Ranking | None:
        """The ranking loss, or None for the binary cross-entropy of single samples."""
        return RANKINGS.get(self.name)

    def of_user(self, logits_S: Tensor, labels_S: Tensor) -> Tensor:
        """A user's loss (scalar), differentiable; no samples give zero, and zero gradients.

        Raises:
            ValueError: with a ranking loss, as :func:`samples_per_positive`.

        """
        if self.ranking is None:
            return sliced_bce(logits_S, labels_S, self.slice_size)
        width = samples_per_positive(labels_S.cpu().numpy())
        weights_S = sample_weights(len(logits_S), self.slice_size)
        weights_P = torch.from_numpy(weights_S.reshape(-1, width).sum(1)).to(logits_S)
        return (weights_P * self.ranking.terms(logits_S.view(-1, width))).sum()


# ---- binary cross-entropy --------------------------------------------------------------------
def sliced_bce(logits_S: Tensor, labels_S: Tensor, loss_slice: int) -> Tensor:
    """Sum over consecutive slices of the mean BCE-with-logits of each slice (scalar).

    No samples give a loss of zero, and zero gradients.
    """
    losses_S = functional.binary_cross_entropy_with_logits(logits_S, labels_S, reduction="none")
    weights_S = torch.from_numpy(sample_weights(len(losses_S), loss_slice)).to(losses_S)
    return (weights_S * losses_S).sum()


def sample_weights(num_samples: int, loss_slice: int) -> npt.NDArray[np.float64]:
    """Weight (S,) of each sample in :func:`sliced_bce`: one over its slice's length."""
    starts = np.arange(num_samples) // loss_slice * loss_slice
    lengths = np.minimum(starts + loss_slice, num_samples) - starts
    return 1.0 / lengths


# ---- ranking ---------------------------------------------------------------------------------
def samples_per_positive(labels_S: FloatArray) -> int:
    """1 + N for samples that are positives, each followed by its own N negatives.

    The samples may be of several users one after another; without any the answer is 2.

    Raises:
        ValueError: when the labels are not so, or N is zero.

    """
    if len(labels_S) == 0:
        return 2
    width, rest = divmod(len(labels_S), max(1, int(np.count_nonzero(labels_S))))
    if rest or width < 2 or not labels_S[::width].all():
        raise ValueError(
            "a ranking loss needs samples in the order positive, its negatives, positive, … "
            "with the same number of negatives, at least one, for every positive"
        )
    return width


def _bpr(scores_PX: Tensor) -> Tensor:
    return -functional.logsigmoid(scores_PX[:, :1] - scores_PX[:, 1:]).mean(1)


def _bpr_derivatives(scores_PX: Tensor) -> Tensor:
    negatives_PN = (scores_PX[:, 1:] - scores_PX[:, :1]).sigmoid_().div_(scores_PX.shape[1] - 1)
    return torch.cat([-negatives_PN.sum(1, keepdim=True), negatives_PN], dim=1)


def _softmax(scores_PX: Tensor) -> Tensor:
    return -functional.logsigmoid(scores_PX[:, 0] - scores_PX[:, 1:].logsumexp(1))


def _softmax_derivatives(scores_PX: Tensor) -> Tensor:
    # The others' probability as one sigmoid: 1 - p would cancel where p is near one.
    others_P1 = (scores_PX[:, 1:].logsumexp(1, keepdim=True) - scores_PX[:, :1]).sigmoid_()
    return torch.cat([-others_P1, others_P1 * scores_PX[:, 1:].softmax(1)], dim=1)


RANKINGS: dict[str, Ranking] = {
    "bpr": Ranking(_bpr, _bpr_derivatives),
    "softmax": Ranking(_softmax, _softmax_derivatives),
}
