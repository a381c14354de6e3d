"""A ranking loss over a block's samples, for kernels that differentiate by hand.

``models.losses`` has the losses; this lays a block's samples out as they take them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.losses import Ranking, samples_per_positive
from models.reduce_samples import FlatSamples


@dataclass(frozen=True)
class Ranked:
    """Positives (P) of a block, each with its own negatives, user after user."""

    ranking: Ranking
    width: int
    """Samples a positive: itself and its negatives."""
    num_users: int
    users_S: Tensor
    weights_P: Tensor
    """Weight of each positive's term in its user's loss."""

    def losses(self, scores_S: Tensor) -> Tensor:
        """Each user's loss (U,)."""
        terms_P = self.ranking.terms(scores_S.view(-1, self.width)).mul_(self.weights_P)
        return terms_P.new_zeros(self.num_users).index_add_(0, self.users_S[:: self.width], terms_P)

    def errors(self, scores_S: Tensor, start: int = 0) -> Tensor:
        """Derivative of the losses by the scores (S,) of consecutive samples of whole users.

        ``start`` is the position of the first of them in the block.
        """
        scores_PX = scores_S.view(-1, self.width)
        first = start // self.width
        weights_P = self.weights_P[first : first + len(scores_PX)]
        return self.ranking.derivatives(scores_PX).mul_(weights_P[:, None]).view(-1)


def ranked(flat: FlatSamples, ranking: Ranking, like: Tensor) -> Ranked:
    """Tensors of the dtype and on the device of ``like``.

    Raises:
        ValueError: as :func:`models.losses.samples_per_positive`.

    """
    width = samples_per_positive(flat.labels_S)
    weights_P = flat.weights_S.reshape(-1, width).sum(1)
    return Ranked(
        ranking,
        width,
        len(flat.lengths_U),
        torch.from_numpy(flat.users_S).to(like.device),
        torch.from_numpy(weights_P).to(like),
    )
