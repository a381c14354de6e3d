"""Random streams derived from (seed, role, indices); global random state is never used.

A stream depends on what it is for and for whom (user index, round), and on nothing else:
not on nodes, workers, order of arrival or earlier draws.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Role(IntEnum):
    """What a stream is for. Values are part of every result: never renumber or reuse them."""

    INIT_SHARED = 1
    INIT_PRIVATE = 2
    COHORT = 3
    TRAIN = 4
    EVAL_NEGATIVES = 6
    STRATEGY = 7
    SYNTHETIC = 8


def derive_rng(seed: int, role: Role, *indices: int) -> np.random.Generator:
    """Return the generator of ``role`` for the given indices, usually (user, round).

    Raises:
        ValueError: if the seed or an index is negative.

    """
    if seed < 0 or any(index < 0 for index in indices):
        raise ValueError(f"seed and indices must not be negative: seed={seed}, {indices}")
    key = (int(role), *(int(index) for index in indices))
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))
