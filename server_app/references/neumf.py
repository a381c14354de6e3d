"""NeuMF (He et al., WWW 2017) trained with all data in one place.

The model, its initial parameters, the loss of a sample and the negatives are those of the
federated strategies: epoch e draws, for every user, what round e of a run with the same seed
would. What differs is what federation takes away: one optimiser over everything, and minibatches
that mix users.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from models.losses import sliced_bce
from models.neumf import NeuMF
from models.rng import Role, derive_rng
from models.types import Tensors
from server_app.references.base import LabelledPairs, Reference, Scorer

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True)
class NeuMFConfig:
    """Settings of :class:`CentralNeuMF`; widths and negatives as the federated default."""

    factors: int = 32
    """GMF width, at least 1."""
    mlp_layers: int = 3
    """Hidden layers, at least 1."""
    num_negatives: int = 4
    """Drawn for every positive in every epoch, at least 1."""
    learning_rate: float = 0.0005
    """Of Adam, for all parameters."""
    batch: int = 1024
    """Samples a step, at least 1."""
    epochs: int = 10
    """At least 1."""

    def __post_init__(self) -> None:
        for key in ("factors", "mlp_layers", "num_negatives", "batch", "epochs"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}")


class CentralNeuMF(Reference[NeuMFConfig]):
    """Minibatch Adam on the mean binary cross-entropy of a minibatch."""

    name = "neumf"
    title = "NeuMF, all data in one place (He et al., WWW 2017)"
    Config = NeuMFConfig
    grid = tuple(
        NeuMFConfig(learning_rate=lr, epochs=epochs)
        for lr, epochs in product((0.0005, 0.001), (5, 10))
    )

    @property
    def implementation(self) -> str:
        """The model of the federated strategies."""
        return "own (torch)"

    def fit(self, train_UI: csr_array, seed: int) -> Scorer:
        """Train shared parameters and every user's vectors together."""
        model = NeuMF(self.config.factors, self.config.mlp_layers)
        shared, private = initial(model, train_UI.shape, seed)
        optimiser = torch.optim.Adam(
            [*shared.values(), *private.values()], lr=self.config.learning_rate
        )
        for epoch in range(1, self.config.epochs + 1):
            pairs = self.draw(seed, epoch, self.config.num_negatives)
            for batch in batches(pairs, self.config.batch, derive_rng(seed, Role.REFERENCE, epoch)):
                optimiser.zero_grad()
                torch.autograd.backward(batch_loss(model, shared, private, batch))
                optimiser.step()
        return _scorer(model, shared, private)


def initial(model: NeuMF, shape: tuple[int, int], seed: int) -> tuple[Tensors, Tensors]:
    """Shared parameters, and private ones with a row a user, as a federated run begins with."""
    num_users, num_items = shape
    shared = model.init_shared(num_items, derive_rng(seed, Role.INIT_SHARED))
    rows = [
        model.init_private(num_items, derive_rng(seed, Role.INIT_PRIVATE, user))
        for user in range(num_users)
    ]
    private = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    for tensor in (*shared.values(), *private.values()):
        tensor.requires_grad_()
    return shared, private


Batch = tuple[Tensor, Tensor, Tensor]
"""Users, items and labels, (S,) each."""


def batches(pairs: LabelledPairs, size: int, rng: np.random.Generator) -> Iterator[Batch]:
    """All samples in random order, ``size`` at a time; the last may be smaller."""
    order = rng.permutation(len(pairs.users_S))
    for start in range(0, len(order), size):
        part = order[start : start + size]
        users, items = torch.from_numpy(pairs.users_S[part]), torch.from_numpy(pairs.items_S[part])
        yield users, items, torch.from_numpy(pairs.labels_S[part])


def batch_loss(model: NeuMF, shared: Tensors, private: Tensors, batch: Batch) -> Tensor:
    """Mean loss of a minibatch: the federated loss with the batch as its one slice."""
    users_S, items_S, labels_S = batch
    # The model takes one user's vectors or, alike, a row a sample.
    own = {name: rows[users_S] for name, rows in private.items()}
    return sliced_bce(model.logits(shared, own, items_S), labels_S, len(labels_S))


def _scorer(model: NeuMF, shared: Tensors, private: Tensors) -> Scorer:
    fixed = {name: tensor.detach() for name, tensor in shared.items()}
    users = {name: tensor.detach() for name, tensor in private.items()}

    def score(users_U: np.ndarray) -> Tensor:
        rows = torch.from_numpy(users_U)
        return model.scores_all(fixed, {name: table[rows] for name, table in users.items()})

    return score
