"""Ragged rows of whole numbers: one flat array and the length of each user's part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from models.types import IntArray


@dataclass(frozen=True)
class Ragged:
    """``values`` of users one after another; user u has ``lengths_U[u]`` of them."""

    values: IntArray
    lengths_U: IntArray

    @classmethod
    def of(cls, indptr: IntArray, values: IntArray, rows_U: IntArray) -> Ragged:
        """Some rows of a compressed sparse row structure."""
        starts_U, lengths_U = indptr[rows_U], indptr[rows_U + 1] - indptr[rows_U]
        shifts_U = starts_U - (np.cumsum(lengths_U) - lengths_U)
        places = np.arange(int(lengths_U.sum())) + np.repeat(shifts_U, lengths_U)
        return cls(values[places], lengths_U)

    @classmethod
    def from_keys(cls, keys: IntArray, base: int, num_users: int) -> Ragged:
        """Inverse of :meth:`keys`, for ascending keys."""
        users, values = np.divmod(keys, base)
        return cls(values, np.bincount(users, minlength=num_users))

    @cached_property
    def users(self) -> IntArray:
        """Each value's user, counted from 0."""
        return np.repeat(np.arange(len(self.lengths_U)), self.lengths_U)

    @cached_property
    def starts(self) -> IntArray:
        """Place of each user's first value."""
        return np.cumsum(self.lengths_U) - self.lengths_U

    def keys(self, base: int) -> IntArray:
        """``user · base + value``: one order for users and values below ``base``."""
        return self.users * base + self.values


def distinct_items(train: Ragged, num_items: int, held_U2: IntArray | None = None) -> Ragged:
    """Sorted distinct items of users: of ``train``, sorted in a user, and of ``held``.

    ``held_U2`` has items, negative for none.
    """
    keys = train.keys(num_items)
    if held_U2 is not None:
        users, places = np.nonzero(held_U2 >= 0)
        keys = np.sort(np.concatenate((keys, users * num_items + held_U2[users, places])))
    first = np.ones(len(keys), dtype=bool)
    first[1:] = keys[1:] != keys[:-1]
    return Ragged.from_keys(keys[first], num_items, len(train.lengths_U))
