"""A ragged block of users' samples as flat arrays, and reduced to distinct keys.

Both without a loop over samples: slices of the loss get their weights by one ``repeat``, and
keys from a small range are numbered by a table of the range instead of a sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.types import FloatArray, IntArray, Samples, block_items

TABLE_PER_KEY = 32
"""Range a key at most for numbering by a table; beyond it, page faults cost more than sorting."""


@dataclass(frozen=True)
class FlatSamples:
    """Samples of a block, user after user."""

    lengths_U: IntArray
    users_S: IntArray
    """Position of each sample's user in the block, ascending."""
    items_S: IntArray
    labels_S: FloatArray
    weights_S: npt.NDArray[np.float64]
    """Weight of each sample in its user's loss (``models.losses.sliced_bce``)."""


def flatten_samples(samples_U: Sequence[Samples], num_items: int, loss_slice: int) -> FlatSamples:
    """Concatenate the samples of a block and weigh them.

    Raises:
        ValueError: for an item outside the catalogue.

    """
    lengths_U = np.array([len(samples) for samples in samples_U], dtype=np.int64)
    return FlatSamples(
        lengths_U,
        np.repeat(np.arange(len(lengths_U)), lengths_U),
        block_items(samples_U, num_items),
        np.concatenate([samples.labels_S for samples in samples_U]),
        slice_weights(lengths_U, loss_slice),
    )


def slice_weights(lengths_U: IntArray, loss_slice: int) -> npt.NDArray[np.float64]:
    """Weight of each sample of users with so many samples: one over its slice's length."""
    slices_U = -(-lengths_U // loss_slice)
    lengths = np.full(slices_U.sum(), loss_slice)
    some = slices_U > 0
    last = np.cumsum(slices_U)[some] - 1
    lengths[last] = lengths_U[some] - (slices_U[some] - 1) * loss_slice
    return np.repeat(1.0 / lengths, lengths)


def distinct(keys_S: IntArray, num_keys: int) -> tuple[IntArray, IntArray]:
    """Distinct keys (P,), ascending, and the position (S,) of each key among them.

    Keys lie in ``0..num_keys - 1``.
    """
    if num_keys > TABLE_PER_KEY * len(keys_S):
        keys_P, position_S = np.unique(keys_S, return_inverse=True)
        return keys_P, position_S
    present = np.zeros(num_keys, dtype=bool)
    present[keys_S] = True
    keys_P = np.flatnonzero(present)
    # Only entries of present keys are written, and only these are read.
    position = np.empty(num_keys, dtype=np.int64)
    position[keys_P] = np.arange(len(keys_P))
    return keys_P, position[keys_S]
