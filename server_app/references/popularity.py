"""Items by their number of training rows, alike for all users."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from server_app.references.base import NoSettings, Reference, Scorer

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class Popularity(Reference[NoSettings]):
    """The popularity row of a federated run: repeats count, ties go against the held-out item."""

    name = "popularity"
    title = "Popularity"
    Config = NoSettings

    def fit(self, train_UI: csr_array, seed: int) -> Scorer:
        """Column sums; ``seed`` has no part in it."""
        counts_I = torch.from_numpy(np.asarray(train_UI.sum(axis=0), dtype=np.float64).reshape(-1))
        return lambda users_U: counts_I.expand(len(users_U), -1)
