"""Clusters of users at the server, from what it has last seen of each of them.

A user's item movement (I, D) is projected along the items by a fixed Gaussian matrix (I, P), which
keeps inner products of movements in expectation (Johnson & Lindenstrauss): a sketch of P · D
numbers. K-means goes over all users that were seen so far, from the centres of the round before,
so that a cluster stays the same one from round to round. All state is named tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.kmeans import kmeans
from models.types import IntArray, Tensors

USERS, SKETCHES, LABELS, CENTRES = "users", "sketches", "labels", "centres"


def no_clusters(clusters: int, width: int) -> Tensors:
    """State before the first round: nobody is in a cluster."""
    return {
        USERS: torch.zeros(0, dtype=torch.int64),
        SKETCHES: torch.zeros(0, width),
        LABELS: torch.zeros(0, dtype=torch.int64),
        CENTRES: torch.zeros(clusters, width),
    }


def projected(moved_UID: Tensor, width: int, rng: np.random.Generator) -> Tensor:
    """Sketches (U, width · D) of item movements."""
    matrix_IP = rng.standard_normal((moved_UID.shape[1], width), dtype=np.float32)
    projection_IP = torch.from_numpy(matrix_IP).to(moved_UID) / width**0.5
    return torch.einsum("uid,ip->upd", moved_UID, projection_IP).flatten(1)


def clustered(
    state: Tensors, users_U: IntArray, sketches_US: Tensor, rng: np.random.Generator
) -> Tensors:
    """State after users showed new sketches, which count by their direction alone."""
    unit_US = torch.nn.functional.normalize(sketches_US.float(), dim=1)
    known = _Known.of(state).seen(users_U, unit_US)
    clusters, first = len(state[CENTRES]), not len(state[USERS])
    start_KS = None if first else state[CENTRES].numpy()
    labels_N = torch.from_numpy(kmeans(known.sketches_NS.numpy(), clusters, rng, start_KS))
    centres_KS = state[CENTRES].clone()
    for label in np.unique(labels_N.numpy()).tolist():
        centres_KS[label] = known.sketches_NS[labels_N == label].mean(0)
    return {
        USERS: torch.from_numpy(known.users_N),
        SKETCHES: known.sketches_NS,
        LABELS: labels_N,
        CENTRES: centres_KS,
    }


def labels_of(state: Tensors, users_U: IntArray) -> dict[int, int]:
    """The cluster of each of these users that is in one."""
    known = dict(zip(state[USERS].tolist(), state[LABELS].tolist(), strict=True))
    return {user: known[user] for user in users_U.tolist() if user in known}


@dataclass(frozen=True)
class _Known:
    """Users by ascending index, and the last sketch of each."""

    users_N: IntArray
    sketches_NS: Tensor

    @classmethod
    def of(cls, state: Tensors) -> _Known:
        return cls(state[USERS].numpy(), state[SKETCHES])

    def seen(self, users_U: IntArray, sketches_US: Tensor) -> _Known:
        users_N = np.union1d(self.users_N, users_U)
        sketches_NS = sketches_US.new_zeros(len(users_N), sketches_US.shape[1])
        sketches_NS[torch.from_numpy(np.searchsorted(users_N, self.users_N))] = self.sketches_NS
        sketches_NS[torch.from_numpy(np.searchsorted(users_N, users_U))] = sketches_US
        return _Known(users_N, sketches_NS)
