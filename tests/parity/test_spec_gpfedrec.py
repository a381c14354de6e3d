"""GPFedRec: a full round against plain arithmetic written from the method's description."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from models.types import IndividualUpdates, Samples, Tensors
from models.user_mlp import UserMLP
from strategies.gpfedrec import TARGET, GPFedRec, GPFedRecConfig
from strategies.own_tables import HAS_OWN, OWN

CONFIG = GPFedRecConfig(batch_size=2, mlp_lr=0.5, user_lr=0.25, item_lr=2.0, pull=0.4)
START = [[0.6, -0.2], [0.1, 0.3], [-0.5, 0.8]]
USER, W0, B0 = [0.7, -0.4], [[0.2, -0.1, 0.5, 0.3], [-0.6, 0.4, 0.1, 0.9]], [0.1, 0.2]
W1, B1 = [0.8, -0.7], 0.05
SAMPLES = {
    3: ([0, 1, 2], [1, 0, 0]),
    5: ([1, 0], [1, 0]),
    8: ([2, 1], [1, 0]),
}
RNG = np.random.default_rng(0)
# Some dozens of float32 operations on numbers of order 1: ten units of 1.2e-7.
SINGLE = 2e-6


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


class ByHand:
    """A user's local round in plain Python, with the chain rule written out.

    With x = (u, q_i), z = W0 x + b0, h = max(z, 0), s = w1 · h + b1 and e = (σ(s) - y)/B for a
    batch of B: ∂w1 = Σ e h, ∂b1 = Σ e; δ = e w1 where z > 0, else 0; ∂W0 = Σ δ xᵀ, ∂b0 = Σ δ;
    and W0ᵀ δ is ∂u in its first half and ∂q_i in its second. All steps of a batch are from one
    point; q also goes ``pull`` of the way from there to r.
    """

    def __init__(self) -> None:
        self.u, self.w0, self.b0 = list(USER), [list(row) for row in W0], list(B0)
        self.w1, self.b1 = list(W1), B1

    def receive(self, items: list[list[float]], target: list[list[float]]) -> None:
        self.q, self.r = [list(row) for row in items], target

    def train(self, items: list[int], labels: list[int]) -> None:
        for start in range(0, len(items), 2):
            self._batch(items[start : start + 2], labels[start : start + 2])

    def _batch(self, items: list[int], labels: list[int]) -> None:
        dq, du = [[0.0, 0.0] for _ in self.q], [0.0, 0.0]
        dw0, db0, dw1, db1 = [[0.0] * 4, [0.0] * 4], [0.0, 0.0], [0.0, 0.0], 0.0
        for i, y in zip(items, labels, strict=True):
            x = [*self.u, *self.q[i]]
            z = [
                sum(w * v for w, v in zip(self.w0[k], x, strict=True)) + self.b0[k] for k in (0, 1)
            ]
            s = sum(self.w1[k] * max(z[k], 0) for k in (0, 1)) + self.b1
            e = (sigmoid(s) - y) / len(items)
            db1 += e
            for k in (0, 1):
                dw1[k] += e * max(z[k], 0)
                delta = e * self.w1[k] * (z[k] > 0)
                db0[k] += delta
                for j in range(4):
                    dw0[k][j] += delta * x[j]
                for d in (0, 1):
                    du[d] += delta * self.w0[k][d]
                    dq[i][d] += delta * self.w0[k][2 + d]
        for i in range(3):
            for d in (0, 1):
                self.q[i][d] -= 2.0 * dq[i][d] + 0.4 * (self.q[i][d] - self.r[i][d])
        self.u = [a - 0.25 * b for a, b in zip(self.u, du, strict=True)]
        self.w0 = [
            [a - 0.5 * b for a, b in zip(*rows, strict=True)]
            for rows in zip(self.w0, dw0, strict=True)
        ]
        self.b0 = [a - 0.5 * b for a, b in zip(self.b0, db0, strict=True)]
        self.w1 = [a - 0.5 * b for a, b in zip(self.w1, dw1, strict=True)]
        self.b1 -= 0.5 * db1


def cosine(a: list[list[float]], b: list[list[float]]) -> float:
    x, y = [v for row in a for v in row], [v for row in b for v in row]
    dot = sum(p * q for p, q in zip(x, y, strict=True))
    return dot / math.sqrt(sum(p * p for p in x)) / math.sqrt(sum(q * q for q in y))


def targets(tables: dict[int, list[list[float]]], released: bool) -> dict[int, list[list[float]]]:
    """Mean over those whose affinity is above the mean of all pairs', oneself included."""
    sign, users = (-1 if released else 1), sorted(tables)
    affinity = {(u, v): sign * cosine(tables[u], tables[v]) for u in users for v in users}
    threshold = sum(affinity.values()) / len(affinity)
    out = {}
    for u in users:
        near = [v for v in users if affinity[u, v] > threshold] or [u]
        out[u] = mean([tables[v] for v in near])
    return out


def mean(tables: list[list[list[float]]]) -> list[list[float]]:
    return [[sum(t[i][d] for t in tables) / len(tables) for d in (0, 1)] for i in range(3)]


def private_of(strategy: GPFedRec) -> Tensors:
    fixed = {"user_emb": USER, "w0": W0, "b0": B0, "w1": [W1], "b1": [B1]}
    drawn = strategy.init_private(3, RNG)
    assert {n: tuple(t.shape) for n, t in drawn.items() if n in fixed} == {
        n: np.shape(v) for n, v in fixed.items()
    }
    return drawn | {n: torch.tensor(v) for n, v in fixed.items()}


def close(got: torch.Tensor, expected: object) -> None:
    torch.testing.assert_close(got, torch.tensor(expected), rtol=SINGLE, atol=SINGLE)


@pytest.mark.parametrize("affinity", ["similarity", "released"])
def test_two_rounds_of_three_users(affinity: str) -> None:
    """Users 3, 5 and 8 in both rounds. D = 2, one hidden layer of two, batches of two.

    Round 1: everybody starts from the table q⁰ with r = q⁰, so the pull is zero until the copy
    has moved. Round 2: from q¹ = mean of the targets, each with its own target.
    """
    cfg = GPFedRecConfig(**{**CONFIG.__dict__, "affinity": affinity})
    strategy = GPFedRec(cfg, UserMLP(factors=2, mlp_layers=1))
    shared = {"item_emb": torch.tensor(START)}
    state, users = strategy.init_server_state(shared), np.array([3, 5, 8])
    private = {user: private_of(strategy) for user in SAMPLES}
    start, hand_targets = START, dict.fromkeys(SAMPLES, START)
    hands: dict[int, ByHand] = {}
    for _ in range(2):
        downlinks, uploads = strategy.downlinks(users), []
        for user, (items, labels) in SAMPLES.items():
            hand = hands.setdefault(user, ByHand())
            hand.receive(start, hand_targets[user])
            hand.train(items, labels)
            samples = Samples(np.array(items), np.array(labels, dtype=np.float32))
            received = shared | downlinks.get(user, {})
            result = strategy.client_update(received, private[user], [samples], RNG)
            private[user] = dict(result.private)
            assert result.individual is not None
            close(result.individual["item_emb"], hand.q)
            close(private[user][OWN], hand.q)
            assert private[user][HAS_OWN] == 1
            for name, value in [("user_emb", hand.u), ("w0", hand.w0), ("b0", hand.b0)]:
                close(private[user][name], value)
            close(private[user]["w1"], [hand.w1])
            close(private[user]["b1"], [hand.b1])
            uploads.append(result.individual["item_emb"])
        updates = IndividualUpdates(users, {"item_emb": torch.stack(uploads)})
        shared, state = strategy.individual_server_update(shared, updates, state)
        hand_targets = targets({u: hand.q for u, hand in hands.items()}, affinity == "released")
        assert len({str(t) for t in hand_targets.values()}) > 1, "the graph must not be trivial"
        start = mean(list(hand_targets.values()))
        close(shared["item_emb"], start)
        for user, sent in strategy.downlinks(users).items():
            close(sent[TARGET], hand_targets[user])
