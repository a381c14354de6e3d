"""Dropout of the entries of a user's vectors.

Source: Srivastava et al., JMLR 15 (2014), in its inverted form, with one mask a user and local
epoch instead of one a sample: a user's epoch is trained in a random part of the dimensions. In a
dot product, masking the user's entries masks the items' as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.sam import Scores
from models.types import Tensors


@dataclass(frozen=True)
class Dropped:
    """A model whose user has some entries switched off and the others scaled up."""

    model: Scores
    factors: Tensors
    """By private vector: 0 where an entry is off, 1/(1 − rate) elsewhere."""

    def logits(self, shared: Tensors, private: Tensors, items_S: Tensor) -> Tensor:
        """The model's logits (S,) for the user that is left."""
        left = {n: t * self.factors[n] if n in self.factors else t for n, t in private.items()}
        return self.model.logits(shared, left, items_S)


def dropped(model: Scores, private: Tensors, rate: float, rng: np.random.Generator) -> Dropped:
    """Draw which entries of the user's vectors are off, each with probability ``rate`` in [0, 1).

    Single numbers, such as a bias, are left alone.
    """
    factors = {
        name: torch.from_numpy((rng.random(len(private[name])) >= rate) / (1 - rate)).to(
            private[name]
        )
        for name in sorted(private)
        if private[name].dim() == 1
    }
    return Dropped(model, factors)
