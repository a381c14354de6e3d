"""A whole round of PFedRec against numbers derived from the paper's description alone.

Three items, D = 2, one mini-batch a user. All users start at Q = ((1, 0), (0, 1), (1, 1)),
w = (1, -1), b = 0; learning rate of the scorer 0.1, of the items 0.1 · 3 · 10 = 3.

User A: item 0 is a positive, item 1 a negative; the loss is their mean.
  Scorer: s0 = 1, s1 = -1, so e0 = (σ(1) - 1)/2 = -σ(-1)/2 and e1 = σ(-1)/2 = -e0. With
  a = σ(-1)/2:  ∂w = (-a, a), ∂b = 0, so w' = (1 + 0.1a, -(1 + 0.1a)) and b' = 0.
  Items, on a second forward pass with c = 1 + 0.1a: s0 = c, s1 = -c, e0' = -σ(-c)/2 = -e1'.
  With f = 3·σ(-c)/2: q0 moves by +f·w' = (fc, -fc), q1 by -f·w' = (-fc, fc), q2 stays.

User B: item 2 is a positive, twice in the batch; the loss is the mean of both.
  Scorer: s2 = 0, so each e = -1/4; ∂w = -½·(1, 1), ∂b = -½: w' = (1.05, -0.95), b' = 0.05.
  Items: s2 = 1.05 - 0.95 + 0.05 = 0.15 and each e' = -σ(-0.15)/2. Both samples move the one
  row: q2 moves by 3·σ(-0.15)·w' =: g·(1.05, -0.95).

Server: plain mean of the two users' tables, so row 0 moves by (fc, -fc)/2, row 1 by
(-fc, fc)/2 and row 2 by g·(1.05, -0.95)/2. Each user keeps the table it trained.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from models.linear import BIAS, ITEM, WEIGHT, LinearScoring
from models.types import Samples, SumOfUpdates, Tensors
from strategies.base import RecStrategy
from strategies.own_tables import HAS_OWN, OWN
from strategies.pfedrec import PFedRec, PFedRecConfig


def sigma(score: float) -> float:
    return 1 / (1 + math.exp(-score))


A = sigma(-1) / 2
C = 1 + 0.1 * A
F = 3 * sigma(-C) / 2
G = 3 * sigma(-0.15)
START = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
MOVED_A = [[F * C, -F * C], [-F * C, F * C], [0.0, 0.0]]
MOVED_B = [[0.0, 0.0], [0.0, 0.0], [1.05 * G, -0.95 * G]]

STRATEGY = PFedRec(PFedRecConfig(private_lr=0.1, item_lr_factor=10.0), LinearScoring(factors=2))
SHARED = {ITEM: torch.tensor(START).double()}
EPOCHS = [
    [Samples(np.array([0, 1]), np.array([1, 0], dtype=np.float32))],
    [Samples(np.array([2, 2]), np.array([1, 1], dtype=np.float32))],
]


def private_block() -> Tensors:
    block = {WEIGHT: torch.tensor([[1.0, -1.0]] * 2), BIAS: torch.zeros(2)}
    block |= {OWN: torch.zeros(2, 3, 2), HAS_OWN: torch.zeros(2)}
    return {n: t.double() for n, t in block.items()}


def values(tensor: torch.Tensor) -> list[float]:
    return [float(value) for value in tensor.flatten()]


def flat(rows: list[list[float]]) -> list[float]:
    return [value for row in rows for value in row]


@pytest.mark.parametrize("update", [RecStrategy.cohort_update, PFedRec.cohort_update])
def test_a_round_by_hand(update: object) -> None:
    rngs = [np.random.default_rng(0)] * 2
    result = update(STRATEGY, SHARED, private_block(), EPOCHS, rngs)  # type: ignore[operator]
    close = {"rel": 1e-12, "abs": 1e-12}  # some ten roundings of float64
    assert values(result.private[WEIGHT]) == pytest.approx([C, -C, 1.05, -0.95], **close)
    assert values(result.private[BIAS]) == pytest.approx([0, 0.05], **close)
    own = [
        [start + moved for start, moved in zip(flat(START), flat(rows), strict=True)]
        for rows in (MOVED_A, MOVED_B)
    ]
    assert values(result.private[OWN]) == pytest.approx(own[0] + own[1], **close)
    # Before the scorer's steps: ln(1 + e^-1) of A's two samples, ln 2 of B's.
    losses = math.log1p(math.exp(-1)) + math.log(2)
    assert result.metrics == pytest.approx({"loss": losses, "num_samples": 4}, **close)
    total = SumOfUpdates(SHARED)
    total.add(result.update)
    state = STRATEGY.init_server_state(SHARED)
    stepped, state = STRATEGY.server_update(SHARED, total.result(), state)
    mean = [(a + b) / 2 for a, b in zip(own[0], own[1], strict=True)]
    assert values(stepped[ITEM]) == pytest.approx(mean, **close)
    assert state == {}
