"""GPFedRec's graph of users: who is linked to whom by item tables, and who is averaged with whom.

Source: GPFedRec (arXiv 2305.07866), user relation graph and guidance. With the cosine c_uv of two
users' tables as vectors, the affinity A_uv is (1 + c_uv)/2, or 1 - c_uv as the public code has it
by default; both lie in 0..2, so a threshold γ times their mean always grows with γ. Linked to
u are all v with A_uv above it, or the k of the greatest A_uv; nobody but u itself if there are
none. Each row of the adjacency is divided by its sum, and L layers are its L-th power.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from models.types import IntArray
from strategies.user_tables import UserTables

Affinity = Literal["similarity", "released"]
Matrix = npt.NDArray[np.float64]
ROUNDING = 1e-12
"""Affinities of float64 tell nothing by less: their sums err by 1e-13."""


@dataclass(frozen=True)
class GraphRule:
    """How the graph is made of the affinities."""

    affinity: Affinity
    gamma: float
    neighbours: int
    """k of the greatest affinities; 0 goes by the threshold."""
    layers: int


def cosines(gram_UU: Matrix) -> Matrix:
    """Cosines of the tables with these inner products; 0 with a table of zeros."""
    norms_U = np.sqrt(np.diagonal(gram_UU))
    inverse_U = np.divide(1.0, norms_U, out=np.zeros_like(norms_U), where=norms_U > 0)
    cosines_UU: Matrix = gram_UU * inverse_U[:, None] * inverse_U
    return cosines_UU


def adjacency(gram_UU: Matrix, rule: GraphRule) -> Matrix:
    """Who each user's table is averaged from, as rows that sum to 1."""
    cosines_UU = cosines(gram_UU)
    released = rule.affinity == "released"
    affinity_UU = 1 - cosines_UU if released else (1 + cosines_UU) / 2
    if rule.neighbours:
        linked_UU = _greatest(affinity_UU, rule.neighbours)
    else:
        linked_UU = affinity_UU > rule.gamma * affinity_UU.mean() + ROUNDING
    alone_U = ~linked_UU.any(axis=1)
    linked_UU[alone_U, alone_U] = True
    rows_UU: Matrix = linked_UU / linked_UU.sum(axis=1, keepdims=True)
    return rows_UU


def _greatest(affinity_UU: Matrix, count: int) -> npt.NDArray[np.bool_]:
    """The ``count`` greatest entries of each row; of equal ones the first."""
    order_UK = np.argsort(-affinity_UU, axis=1, kind="stable")[:, :count]
    linked_UU = np.zeros(affinity_UU.shape, dtype=bool)
    np.put_along_axis(linked_UU, order_UK, True, axis=1)
    return linked_UU


class UserGraph:
    """The graph over all users that have a table, kept up with the tables.

    Inner products are kept in memory (N · N · 8 bytes) and only those of users whose tables
    changed are computed anew; a fresh object computes all of them.
    """

    def __init__(self, tables: UserTables, rule: GraphRule) -> None:
        self._tables, self._rule = tables, rule
        self.users_U: IntArray = np.empty(0, dtype=np.int64)
        self._stamps_U = self.users_U
        self._gram_UU: Matrix = np.empty((0, 0))
        self._adjacency_UU: Matrix | None = None

    def weights(self, users_K: IntArray) -> Matrix:
        """What each user's average takes of the table of each of ``users_U`` (K, U)."""
        self._refresh()
        if self._adjacency_UU is None:
            self._adjacency_UU = adjacency(self._gram_UU, self._rule)
        weights_KU = self._adjacency_UU[np.searchsorted(self.users_U, users_K)]
        for _ in range(self._rule.layers - 1):
            weights_KU = weights_KU @ self._adjacency_UU
        return weights_KU

    def _refresh(self) -> None:
        """Compute the products of tables that are new since the last time."""
        users_U = self._tables.users()
        stamps_U = self._tables.stamps(users_U)
        known = dict(zip(self._stamps_U.tolist(), range(len(self._stamps_U)), strict=True))
        old_U = np.array([known.get(stamp, -1) for stamp in stamps_U.tolist()], dtype=np.int64)
        new = np.flatnonzero(old_U < 0)
        if not len(new) and len(users_U) == len(self.users_U):
            return
        gram_UU, kept = np.empty((len(users_U),) * 2), np.flatnonzero(old_U >= 0)
        gram_UU[np.ix_(kept, kept)] = self._gram_UU[np.ix_(old_U[kept], old_U[kept])]
        gram_UU[new] = self._tables.gram(users_U[new], users_U)
        gram_UU[:, new] = gram_UU[new].T
        # Products among the new ones come twice, and may differ in their last digit.
        among = np.ix_(new, new)
        gram_UU[among] = (gram_UU[among] + gram_UU[among].T) / 2
        self.users_U, self._stamps_U, self._gram_UU = users_U, stamps_U, gram_UU
        self._adjacency_UU = None
