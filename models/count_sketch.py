"""Count sketch: a vector of any length in a few rows of buckets, by random signs.

Charikar, Chen & Farach-Colton, ICALP 2002. Entry k is added, with a sign s(k), to bucket h(k) of
each row, with other functions s and h a row; s(k) times that bucket estimates the entry without
bias, with a variance of at most the squared norm of the vector over the row's width, and the
median over rows is rarely far off. A sketch is linear: it may be summed over users and nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.types import IntArray

Words = npt.NDArray[np.uint64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class CountSketch:
    """Rows of buckets; server and nodes agree on the functions, which are the same everywhere.

    Raises:
        ValueError: when there is not at least one row and one bucket.

    """

    rows: int
    width: int
    """Buckets a row."""

    def __post_init__(self) -> None:
        if min(self.rows, self.width) < 1:
            raise ValueError("a sketch needs at least one row and one bucket")

    def add(self, sketch_RW: Tensor, keys_S: IntArray, values_S: Tensor) -> None:
        """Add values to entries, in place; a key that repeats adds up."""
        for row, buckets_W in enumerate(sketch_RW):
            index_S, signs_S = self._hashed(row, keys_S, sketch_RW)
            buckets_W.index_add_(0, index_S, signs_S * values_S)

    def estimates(self, sketch_RW: Tensor, keys_S: IntArray) -> Tensor:
        """Median over rows of what each says of the entries (S,)."""
        found = []
        for row, buckets_W in enumerate(sketch_RW):
            index_S, signs_S = self._hashed(row, keys_S, sketch_RW)
            found.append(signs_S * buckets_W[index_S])
        return torch.stack(found).quantile(0.5, dim=0) if self.rows > 1 else found[0]

    def _hashed(self, row: int, keys_S: IntArray, like: Tensor) -> tuple[Tensor, Tensor]:
        words_S = _mixed(keys_S.astype(np.uint64) ^ _mixed(np.array([row], dtype=np.uint64)))
        index_S = ((words_S >> np.uint64(1)) % np.uint64(self.width)).astype(np.int64)
        signs_S = 1 - 2 * (words_S & np.uint64(1)).astype(np.int64)
        return torch.from_numpy(index_S).to(like.device), torch.from_numpy(signs_S).to(like)


def _mixed(words_S: Words) -> Words:
    """SplitMix64 (Steele, Lea & Flood, OOPSLA 2014): every bit of a word hangs on all bits."""
    words_S = words_S + GOLDEN
    words_S = (words_S ^ (words_S >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words_S = (words_S ^ (words_S >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Words = words_S ^ (words_S >> np.uint64(31))
    return mixed
