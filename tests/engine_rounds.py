"""Rounds of a strategy without nodes, for tests that hold an engine to the readable loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from models.rng import Role, derive_rng
from models.types import CohortResult, Samples, SumOfUpdates, Tensors
from strategies.base import RecStrategy

POSITIVES = (1, 7, 40, 3, 12, 1, 25)
"""Positives of each user."""
ROUNDS = 3
EXACT = 1e-10
"""A round rounds at 1e-15 (sums of some hundred float64 terms) and hands it to the next, whose
steps of moderate rate may grow it by a small factor: far below 1e-10 after three."""

BlockUpdate = Callable[
    [RecStrategy, Tensors, Tensors, Sequence[Sequence[Samples]], Sequence[np.random.Generator]],
    CohortResult,
]
Outcome = tuple[Tensors, Tensors, list[float]]
"""Shared parameters, private rows and losses after some rounds."""


def epochs_of(num_items: int, round_: int) -> list[list[Samples]]:
    """Two local epochs of each user, positives with four negatives each."""

    def draw(user: int, epoch: int) -> Samples:
        rng = derive_rng(0, Role.TRAIN, user, round_, epoch)
        labels_S = np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), POSITIVES[user])
        return Samples(rng.integers(0, num_items, len(labels_S)), labels_S)

    return [[draw(user, epoch) for epoch in range(2)] for user in range(len(POSITIVES))]


def rounds(strategy: RecStrategy, num_items: int, block: int, update: BlockUpdate) -> Outcome:
    """Train all users for some rounds in float64, ``block`` of them at once."""
    users = range(len(POSITIVES))
    drawn = [strategy.start_private(num_items, 0, user) for user in users]
    private = {n: torch.stack([row[n] for row in drawn]).double() for n in drawn[0]}
    start = strategy.init_shared(num_items, derive_rng(0, Role.INIT_SHARED))
    shared, losses = {n: t.double() for n, t in start.items()}, []
    state = strategy.init_server_state(shared)
    rngs = [derive_rng(0, Role.STRATEGY, user, 1) for user in users]
    for round_ in range(ROUNDS):
        total, parts, loss = SumOfUpdates(strategy.summed_template(shared)), list[Tensors](), 0.0
        epochs_U = epochs_of(num_items, round_)
        for first in range(0, len(POSITIVES), block):
            part = slice(first, first + block)
            rows = {n: t[part] for n, t in private.items()}
            result = update(strategy, shared, rows, epochs_U[part], rngs[part])
            total.add(result.update)
            parts.append(dict(result.private))
            loss += result.metrics["loss"]
        private = {n: torch.cat([rows[n] for rows in parts]) for n in private}
        shared, state = strategy.server_update(shared, total.result(), state)
        losses.append(loss)
    return shared, private, losses


def assert_engines_agree(strategy: RecStrategy, num_items: int, block: int) -> None:
    """The strategy's own block update, in blocks of this size, against user by user."""
    loop = rounds(strategy, num_items, len(POSITIVES), RecStrategy.cohort_update)
    cohort = rounds(strategy, num_items, block, type(strategy).cohort_update)
    for got, expected in zip(cohort[:2], loop[:2], strict=True):
        for name in expected:
            torch.testing.assert_close(got[name], expected[name], rtol=EXACT, atol=EXACT)
    assert cohort[2] == pytest.approx(loop[2], rel=EXACT)


def assert_same_bytes_twice(strategy: RecStrategy, num_items: int, block: int) -> None:
    """The same rounds once more."""
    update = type(strategy).cohort_update
    first, second = (rounds(strategy, num_items, block, update) for _ in range(2))
    for one, other in zip(first[:2], second[:2], strict=True):
        assert all(torch.equal(one[n], other[n]) for n in one)


def one_update(strategy: RecStrategy, num_items: int) -> CohortResult:
    """A block of all users who start alike, in float32."""
    shared = strategy.init_shared(num_items, derive_rng(0, Role.INIT_SHARED))
    row = strategy.start_private(num_items, 0, 0)
    block = {n: torch.stack([t] * len(POSITIVES)) for n, t in row.items()}
    rngs = [np.random.default_rng(0)] * len(POSITIVES)
    return strategy.cohort_update(shared, block, epochs_of(num_items, 0), rngs)


def on_both_devices(strategy: RecStrategy, num_items: int) -> tuple[CohortResult, CohortResult]:
    """The same update, in float64, on the CPU and on the GPU."""
    start = strategy.init_shared(num_items, derive_rng(0, Role.INIT_SHARED))
    shared = {n: t.double() for n, t in start.items()}
    rows = [strategy.start_private(num_items, 0, user) for user in range(len(POSITIVES))]
    block = {n: torch.stack([row[n] for row in rows]).double() for n in rows[0]}
    epochs_U, rngs = epochs_of(num_items, 0), [np.random.default_rng(0)] * len(POSITIVES)
    here = strategy.cohort_update(shared, block, epochs_U, rngs)
    on_gpu = [{n: t.cuda() for n, t in part.items()} for part in (shared, block)]
    return here, strategy.cohort_update(*on_gpu, epochs_U, rngs)


def assert_devices_agree(strategy: RecStrategy, num_items: int) -> None:
    """Update, row weights and private rows on a GPU are the CPU's."""
    here, there = on_both_devices(strategy, num_items)
    pairs = [(there.update.tensors[n], t) for n, t in here.update.tensors.items()]
    pairs += [(there.private[n], t) for n, t in here.private.items()]
    if here.update.row_weights is not None:
        assert there.update.row_weights is not None
        pairs += [(there.update.row_weights[n], t) for n, t in here.update.row_weights.items()]
    for got, expected in pairs:
        assert got.shape == expected.shape
        torch.testing.assert_close(
            got.to_dense().cpu(), expected.to_dense(), rtol=EXACT, atol=EXACT
        )
