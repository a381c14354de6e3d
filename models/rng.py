"""Random streams derived from (seed, role, indices); global random state is never used.

A stream depends on what it is for and for whom (user index, round), and on nothing else:
not on nodes, workers, order of arrival or earlier draws.

:func:`derive_rng` gives a generator for anything. :class:`UserStreams` gives plain uniform
numbers for many users at once, several times faster a user: its generator is counter-based
(Philox, Salmon et al., SC 2011), so a user's stream begins at a counter instead of a hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from models.types import IntArray

Uniforms = npt.NDArray[np.float64]
"""Numbers in [0, 1): multiples of 2^-53."""


class Role(IntEnum):
    """What a stream is for. Values are part of every result: never renumber or reuse them."""

    INIT_SHARED = 1
    INIT_PRIVATE = 2
    COHORT = 3
    TRAIN = 4
    EVAL_NEGATIVES = 6
    STRATEGY = 7
    SYNTHETIC = 8
    EVALUATION = 9
    COLD_START = 10
    SERVER = 11
    REFERENCE = 12
    SEARCH = 13
    LANDSCAPE = 14
    REPORT = 15
    AUDIT = 16
    PRIVACY_USER = 40
    PRIVACY_SERVER = 41
    PSEUDO_ITEMS = 42
    ATTACK = 43
    DEFENCE = 44
    DEVICES = 45


def derive_rng(seed: int, role: Role, *indices: int) -> np.random.Generator:
    """Return the generator of ``role`` for the given indices, usually (user, round).

    Raises:
        ValueError: if the seed or an index is negative.

    """
    if seed < 0 or any(index < 0 for index in indices):
        raise ValueError(f"seed and indices must not be negative: seed={seed}, {indices}")
    key = (int(role), *(int(index) for index in indices))
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


class UserStreams:
    """Uniform numbers of a role for many users, each user's from a stream of its own.

    A user's numbers depend on (seed, role, indices, user) alone: asking for more of them, or
    for other users beside, gives the same ones first. Philox 4x64 is keyed by the former three
    and starts at the user's counter; streams of different users never overlap.

    Raises:
        ValueError: if the seed, an index or a user is negative.

    """

    def __init__(self, seed: int, role: Role, *indices: int) -> None:
        if seed < 0 or any(index < 0 for index in indices):
            raise ValueError(f"seed and indices must not be negative: seed={seed}, {indices}")
        sequence = np.random.SeedSequence(seed, spawn_key=(int(role), *map(int, indices)))
        self._counter = np.zeros(4, dtype=np.uint64)
        self._bits = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._bits)
        self._state: Any = dict(self._bits.state)
        key = sequence.generate_state(2, np.uint64)
        self._state["state"] = {"counter": self._counter, "key": key}

    def uniforms(self, users_U: IntArray, counts_U: Sequence[int] | IntArray) -> Uniforms:
        """The first ``counts`` numbers of each user's stream, user after user."""
        if len(users_U) and users_U.min() < 0:
            raise ValueError(f"users must not be negative, got {users_U.min()}")
        stops = np.cumsum(counts_U)
        out = np.empty(int(stops[-1]) if len(stops) else 0)
        start = 0
        for user, stop in zip(users_U.tolist(), stops.tolist(), strict=True):
            self._counter[1] = user
            self._bits.state = self._state
            self._generator.random(out=out[start:stop])
            start = stop
        return out
