"""What a curious server has in its hands, wherever it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from models.types import Tensors

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Upload:
    """A sum of updates over ``num_users`` users, as received: masked or noisy, where it is so."""

    tensors: Tensors
    num_users: int
    round: int
    shared_before: Tensors
    """The parameters that were sent before."""
    row_weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """How many users touched each row (I,), where users send this."""


@dataclass(frozen=True)
class Facts:
    """What everybody knows about a run: its code and its settings."""

    num_items: int
    negatives: int
    """Drawn for each positive."""
    moves: bool = False
    """Uploads are movements of parameters, against gradients of them."""
    dense: bool = False
    """An update moves rows of items that the user has no sample of."""
    closed_form: bool = False
    """Users are solved for; there are no samples with labels."""
    items_per_user: float = 0.0
    """The mean number of distinct items."""


@dataclass(frozen=True)
class Guess:
    """An attack's answer: the higher an item's score (I,), the surer; and which it names (I,)."""

    scores_I: Floats
    named_I: Bools
    considered_I: Bools | None = None
    """Candidates among which it chose; None: the whole catalogue."""


class NotApplicableError(Exception):
    """Why an attack cannot be made on such uploads."""


def item_rows(upload: Upload, num_items: int) -> dict[str, Floats]:
    """The upload's tensors with a row an item, flattened to (I, X)."""
    tables = {**upload.tensors, **{f"weights of {n}": t for n, t in upload.row_weights.items()}}
    return {
        name: tensor.to_dense().double().reshape(num_items, -1).numpy()
        for name, tensor in tables.items()
        if tensor.dim() and len(tensor) == num_items and tensor.dtype.is_floating_point
    }


def embedding_rows(upload: Upload, num_items: int) -> dict[str, Floats]:
    """The same, of at least two numbers a row."""
    return {n: t for n, t in item_rows(upload, num_items).items() if t.shape[1] > 1}
