"""PerFedRec: blocks of any size and nodes in any number give the same round."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.mf import MatrixFactorisation
from models.rng import Role, derive_rng
from models.types import IndividualUpdates, Samples, Tensors
from strategies.individual import gathered
from strategies.perfedrec import PerFedRec
from strategies.perfedrec_config import PerFedRecConfig

POSITIVES = (1, 7, 40, 3, 12, 1, 25)
NUM_ITEMS, ROUNDS = 53, 4
CONFIG = PerFedRecConfig(local_epochs=2, clusters=3, item_lr=1.0)


def epochs_of(user: int, round_: int) -> list[Samples]:
    rng = derive_rng(0, Role.TRAIN, user, round_)
    labels_S = np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), POSITIVES[user])
    return [Samples(rng.integers(0, NUM_ITEMS, len(labels_S)), labels_S) for _ in range(2)]


def trained(
    perfedrec: PerFedRec, users: list[int], rows: dict[int, Tensors], round_: int, block: int
) -> list[IndividualUpdates]:
    """Uploads of a round by block; users in a cluster train by themselves, as on a node."""
    downlinks, parts = perfedrec.downlinks(np.array(users)), list[IndividualUpdates]()
    size = 1 if downlinks else block
    for first in range(0, len(users), size):
        own = users[first : first + size]
        shared = perfedrec.shared | downlinks.get(own[0], {})
        private = {n: torch.stack([rows[u][n] for u in own]) for n in rows[0]}
        rngs = [derive_rng(0, Role.STRATEGY, u, round_) for u in own]
        epochs_U = [epochs_of(u, round_) for u in own]
        result = perfedrec.cohort_update(shared, private, epochs_U, rngs)
        assert result.individual is not None
        parts.append(IndividualUpdates(np.array(own), result.individual))
        rows |= {u: {n: t[at] for n, t in result.private.items()} for at, u in enumerate(own)}
    return parts


def rounds(perfedrec: PerFedRec, block: int, order: list[int]) -> tuple[Tensors, Tensors]:
    """Shared parameters and server state after some rounds of all users, in a node's order."""
    shared = perfedrec.init_shared(NUM_ITEMS, derive_rng(0, Role.INIT_SHARED))
    perfedrec.set_shared({n: t.double() for n, t in shared.items()})
    rows = {
        user: {n: t.double() for n, t in perfedrec.start_private(NUM_ITEMS, 0, user).items()}
        for user in range(len(POSITIVES))
    }
    for round_ in range(ROUNDS):
        updates = gathered(trained(perfedrec, order, rows, round_, block))
        perfedrec.shared, perfedrec.server_state = perfedrec.individual_server_update(
            perfedrec.shared, updates, perfedrec.server_state
        )
    return perfedrec.shared, perfedrec.server_state


@pytest.mark.parametrize("share_user", [False, True])
@pytest.mark.parametrize("block", [3, 7])
def test_blocks_and_nodes_do_not_matter(block: int, share_user: bool) -> None:
    config = PerFedRecConfig(**{**CONFIG.__dict__, "share_user": share_user})
    perfedrec = PerFedRec(config, MatrixFactorisation(factors=4, init_std=0.5))
    one_by_one = rounds(perfedrec, 1, list(range(len(POSITIVES))))
    spread = rounds(perfedrec, block, [4, 1, 6, 0, 3, 2, 5])
    for got, expected in zip(spread, one_by_one, strict=True):
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[n], expected[n]) for n in expected)
