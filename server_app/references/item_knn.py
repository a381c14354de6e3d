"""Item-based nearest neighbours with shrunk cosine similarity.

Sarwar, Karypis, Konstan & Riedl, WWW 2001; the shrinkage as in Ferrari Dacrema, Cremonesi &
Jannach, RecSys 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from server_app.references.base import Reference, Scorer, binary

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SLAB = 512
"""Items whose similarities to all others are held at once."""

Similarities = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ItemKNNConfig:
    """Settings of :class:`ItemKNN`."""

    neighbours: int = 100
    """Most similar items kept for each item, at least 1."""
    shrinkage: float = 0.0
    """Added to the product of the items' norms: similarity from few users counts less."""

    def __post_init__(self) -> None:
        if self.neighbours < 1:
            raise ValueError(f"neighbours must be at least 1, got {self.neighbours}")
        if self.shrinkage < 0:
            raise ValueError(f"shrinkage must not be negative, got {self.shrinkage}")


class ItemKNN(Reference[ItemKNNConfig]):
    """score(u, i) = Σ s_ij over the items j of u that are among the k nearest of i."""

    name = "item_knn"
    title = "Item-kNN, cosine (Sarwar et al., WWW 2001)"
    Config = ItemKNNConfig
    grid = tuple(ItemKNNConfig(k, h) for k, h in product((20, 50, 100, 200), (0.0, 10.0, 100.0)))

    def fit(self, train_UI: csr_array, seed: int) -> Scorer:
        """Similarities of each item to its neighbours; ``seed`` has no part in it."""
        once_UI = binary(train_UI)
        nearest_II = self.similarities(once_UI)

        def score(users_U: npt.NDArray[np.int64]) -> torch.Tensor:
            return torch.from_numpy((once_UI[users_U] @ nearest_II).toarray())

        return score

    def similarities(self, once_UI: csr_array) -> csr_array:
        """s_ij = |U_i ∩ U_j| / (√(|U_i| |U_j|) + shrinkage); column i keeps its k largest.

        Equal similarities go to the lower index; an item is no neighbour of itself.
        """
        from scipy.sparse import csr_array, hstack

        norms_I = np.sqrt(np.asarray(once_UI.sum(axis=0)).reshape(-1))
        columns = []
        for start in range(0, once_UI.shape[1], SLAB):
            items = np.arange(start, min(start + SLAB, once_UI.shape[1]))
            common_IR = (once_UI.T @ once_UI[:, items]).toarray()
            scale_IR = norms_I[:, None] * norms_I[items] + self.config.shrinkage
            # An item nobody trained on has nothing in common with any.
            slab_IR = common_IR / np.where(scale_IR > 0, scale_IR, 1.0)
            slab_IR[items, items - start] = 0.0
            columns.append(csr_array(_largest(slab_IR, self.config.neighbours)))
        return csr_array(hstack(columns))


def _largest(slab_IR: Similarities, count: int) -> Similarities:
    """The matrix with all but the ``count`` largest of each column set to zero."""
    order_IR = np.argsort(-slab_IR, axis=0, kind="stable")[:count]
    kept_IR = np.zeros_like(slab_IR)
    values = np.take_along_axis(slab_IR, order_IR, axis=0)
    np.put_along_axis(kept_IR, order_IR, values, axis=0)
    return kept_IR
