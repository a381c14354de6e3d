"""A whole round of FedRAP against numbers derived from the paper's description alone.

Three items, two users, D = 2, one mini-batch each, in the round after one finished: learning
rates 0.2 (scorer), 4 (D) and 3 · 8/3 (C) are halved to 0.1, 2 and 4 by the decay a round. λ = 0.5,
μ = 0.25, weight decay 0.1. All start at w = (1, -1), b = 0 and
    shared C = ((1, 0), (0, -1), (1, 1)),   own D = ((0, 1), (1, 0), (2, 1)).
A mini-batch of 2 samples has 4 entries: a sample adds ∓2λ/4 = ∓0.25 times D - C to the gradients
of D and C, and μ/4 = 0.0625 times sign C to that of C.

User A: item 0 is a positive, item 1 a negative. D + C is (1, 1) and (1, -1), the scores 0 and 2;
e0 = (σ(0) - 1)/2 = -1/4 and e1 = σ(2)/2 =: h.
  ∂w = (h - 1/4, -h - 1/4) + 0.1·w:   w' = (1.015 - 0.1h, -0.965 + 0.1h);   b' = 0.025 - 0.1h
  D - C = (-1, 1) and (1, 1), so
  ∂D0 = (-.25, .25) + .25(1, -1) + .1(0, 1) = (0, .1):               D0' = (0, .8)
  ∂C0 = (-.25, .25) + .25(-1, 1) + .0625(1, 0) + .1(1, 0):           C0' = (2.35, -2)
  ∂D1 = (h, -h) - .25(1, 1) + .1(1, 0):                              D1' = (1.3 - 2h, .5 + 2h)
  ∂C1 = (h, -h) + .25(1, 1) + .0625(0, -1) + .1(0, -1):              C1' = (-1 - 4h, -1.35 + 4h)

User B: item 2 is a positive, twice. D + C = (3, 2), the score is 1, e = -σ(-1)/2 for each; with
p = σ(-1) for both. The regularisers count the row twice, weight decay once.
  ∂w = -p(3, 2) + 0.1·w:              w' = (.99 + .3p, -.99 + .2p);   b' = .1p
  ∂D2 = (-p, p) - .5(1, 0) + .1(2, 1):                               D2' = (2.6 + 2p, .8 - 2p)
  ∂C2 = (-p, p) + .5(1, 0) + .125(1, 1) + .1(1, 1):                  C2' = (-1.9 + 4p, .1 - 4p)

Server: plain mean of the copies of C, each as it was where the user has no sample.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from models.linear import BIAS, ITEM, WEIGHT, LinearScoring
from models.types import Samples, SumOfUpdates, Tensors
from strategies.base import RecStrategy
from strategies.fedrap import OWN, ROUNDS, FedRAP, FedRAPConfig


def sigma(score: float) -> float:
    return 1 / (1 + math.exp(-score))


H, P = sigma(2) / 2, sigma(-1)
OWN_A = [0, 0.8, 1.3 - 2 * H, 0.5 + 2 * H, 2, 1]
OWN_B = [0, 1, 1, 0, 2.6 + 2 * P, 0.8 - 2 * P]
COPY_A = [2.35, -2, -1 - 4 * H, -1.35 + 4 * H, 1, 1]
COPY_B = [1, 0, 0, -1, -1.9 + 4 * P, 0.1 - 4 * P]

STRATEGY = FedRAP(
    FedRAPConfig(
        local_epochs=1,
        score_lr=0.2,
        own_lr=4.0,
        item_lr_factor=8 / 3,
        weight_decay=0.1,
        round_decay=0.5,
        difference=0.5,
        sparsity=0.25,
        curriculum="constant",
    ),
    LinearScoring(factors=2),
)
SHARED = {
    ITEM: torch.tensor([[1.0, 0.0], [0.0, -1.0], [1.0, 1.0]]).double(),
    ROUNDS: torch.ones(()).double(),
}
EPOCHS = [
    [Samples(np.array([0, 1]), np.array([1, 0], dtype=np.float32))],
    [Samples(np.array([2, 2]), np.array([1, 1], dtype=np.float32))],
]


def private_block() -> Tensors:
    own_ID = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0]])
    block = {WEIGHT: torch.tensor([[1.0, -1.0]] * 2), BIAS: torch.zeros(2)}
    block |= {OWN: torch.stack([own_ID, own_ID])}
    return {n: t.double() for n, t in block.items()}


def close(expected: Any) -> Any:
    """Some ten roundings of float64."""
    return pytest.approx(expected, rel=1e-12, abs=1e-12)


def values(tensor: torch.Tensor) -> list[float]:
    return [float(value) for value in tensor.flatten()]


@pytest.mark.parametrize("update", [RecStrategy.cohort_update, FedRAP.cohort_update])
def test_a_round_by_hand(update: Any) -> None:
    rngs = [np.random.default_rng(0)] * 2
    result = update(STRATEGY, SHARED, private_block(), EPOCHS, rngs)
    weights = [1.015 - 0.1 * H, -0.965 + 0.1 * H, 0.99 + 0.3 * P, -0.99 + 0.2 * P]
    assert values(result.private[WEIGHT]) == close(weights)
    assert values(result.private[BIAS]) == close([0.025 - 0.1 * H, 0.1 * P])
    assert values(result.private[OWN]) == close(OWN_A + OWN_B)
    losses = (math.log(2) + math.log1p(math.exp(2))) / 2 + math.log1p(math.exp(-1))
    assert result.metrics == close({"loss": losses, "num_samples": 4})
    total = SumOfUpdates(SHARED)
    total.add(result.update)
    state = STRATEGY.init_server_state(SHARED)
    stepped, state = STRATEGY.server_update(SHARED, total.result(), state)
    assert values(stepped[ITEM]) == close(
        [(a + b) / 2 for a, b in zip(COPY_A, COPY_B, strict=True)]
    )
    assert stepped[ROUNDS].item() == 2
    assert state == {}
