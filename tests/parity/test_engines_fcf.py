"""FCF: rounds of the cohort engine, in blocks of any size, equal the loop's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.mf import MatrixFactorisation
from models.rng import Role, derive_rng
from models.types import Samples, SumOfUpdates, Tensors
from strategies.base import RecStrategy
from strategies.fcf import FCF, FCFConfig

POSITIVES = (1, 7, 40, 3, 12, 1, 25)
CONFIG = FCFConfig(alpha=3.0, user_reg=0.5)
ROUNDS = 3
# Systems of condition some hundred keep 1e-13, and Adam's division by a gradient's own size may
# grow that a thousandfold for the smallest entries.
EXACT = 1e-10


def epochs_of(user: int, num_items: int) -> list[Samples]:
    items = derive_rng(0, Role.TRAIN, user).permutation(num_items)[: POSITIVES[user]]
    return [Samples(items, np.ones(len(items), dtype=np.float32))]


def rounds(fcf: FCF, num_items: int, block: int, loop: bool) -> tuple[Tensors, Tensors]:
    """Shared parameters and private rows after some rounds of all users."""
    update = RecStrategy.cohort_update if loop else FCF.cohort_update
    users = range(len(POSITIVES))
    rows = [fcf.init_private(num_items, derive_rng(0, Role.INIT_PRIVATE, u)) for u in users]
    private = {n: torch.stack([row[n] for row in rows]).double() for n in rows[0]}
    start = fcf.init_shared(num_items, derive_rng(0, Role.INIT_SHARED))
    shared = {n: t.double() for n, t in start.items()}
    state = fcf.init_server_state(shared)
    epochs_U = [epochs_of(u, num_items) for u in users]
    rngs = [np.random.default_rng(0)] * len(POSITIVES)
    for _ in range(ROUNDS):
        total, parts = SumOfUpdates(shared), list[Tensors]()
        for first in range(0, len(POSITIVES), block):
            part = slice(first, first + block)
            own = {n: t[part] for n, t in private.items()}
            result = update(fcf, shared, own, epochs_U[part], rngs[part])
            total.add(result.update)
            parts.append(result.private)
        private = {n: torch.cat([own[n] for own in parts]) for n in private}
        shared, state = fcf.server_update(shared, total.result(), state)
    return shared, private


@pytest.mark.parametrize("num_items", [53, 600])
@pytest.mark.parametrize("block", [1, 3, 7])
def test_rounds_of_both_engines_agree(block: int, num_items: int) -> None:
    fcf = FCF(CONFIG, MatrixFactorisation(factors=4, init_std=0.5))
    loop = rounds(fcf, num_items, len(POSITIVES), loop=True)
    cohort = rounds(fcf, num_items, block, loop=False)
    for got, expected in zip(cohort, loop, strict=True):
        for tensor in expected:
            torch.testing.assert_close(got[tensor], expected[tensor], rtol=EXACT, atol=EXACT)


def test_same_bytes_twice() -> None:
    fcf = FCF(CONFIG, MatrixFactorisation(factors=4))
    first, second = (rounds(fcf, 600, 3, loop=False) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(one[n], other[n]) for n in one)
