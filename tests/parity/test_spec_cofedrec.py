"""CoFedRec: two rounds against plain arithmetic written from the method's description."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from models.linear import BIAS, ITEM, WEIGHT, LinearScoring
from models.types import IndividualUpdates, Samples, Tensors
from strategies.cofedrec import GROUP, LABELS, OWN, CoFedRec, CoFedRecConfig

Table = list[list[float]]
CONFIG = CoFedRecConfig(
    local_epochs=1, batch_size=2, scorer_lr=0.5, item_lr=3.0, contrast=0.2, clusters=2
)
START: Table = [[1.0, 0.2], [0.8, 0.5], [-0.9, 0.4]]
W, B = [0.6, -0.3], 0.1
SAMPLES = {
    0: ([0, 1, 2], [1, 0, 0]),
    2: ([0, 2, 1], [1, 0, 1]),
    5: ([2, 0], [1, 0]),
    7: ([1, 2], [1, 0]),
}
RNG = np.random.default_rng(0)
# In float64: gradients of the contrastive loss here are central differences, which err by the
# step squared, 1e-8 of third derivatives of order 1/τ³ = 1e3 times κ = 0.2 in five steps.
NUMERIC = 1e-5


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def contrastive(table: Table, labels: list[int]) -> float:
    """Sum over items i of -τ/τ₀ · Σ over p in P_i of log(p's share among all j ≠ i), over |P_i|.

    Logits (c_ij - 1)/τ are at most zero; 1e-6 is added to the sum of their exponentials, and to
    |P_i|. Here that matters: with few items the sum may be as small as 1e-3.
    """
    unit = [[x / math.hypot(*row) for x in row] for row in table]
    total = 0.0
    for i, own in enumerate(unit):
        logits = {j: (dot(own, other) - 1) / 0.1 for j, other in enumerate(unit) if j != i}
        log_sum = math.log(sum(math.exp(v) for v in logits.values()) + 1e-6)
        near = [logits[j] - log_sum for j in logits if labels[j] == labels[i]]
        total -= 0.1 / 0.5 * sum(near) / (len(near) + 1e-6)
    return total


def contrastive_gradient(table: Table, labels: list[int]) -> Table:
    """By central differences with a step of 1e-4."""
    out = [[0.0, 0.0] for _ in table]
    for i in range(len(table)):
        for d in (0, 1):
            values = []
            for sign in (1, -1):
                moved = [list(row) for row in table]
                moved[i][d] += sign * 1e-4
                values.append(contrastive(moved, labels))
            out[i][d] = (values[0] - values[1]) / 2e-4
    return out


class ByHand:
    """A user: scorer and table, two steps a batch of two.

    (a) w ← w - 0.5 Σ e q_i, b ← b - 0.5 Σ e with e = (σ(w·q_i + b) - y)/B. (b) With e at the new
    scorer: q_i ← q_i - 3 Σ e w - 0.2 ∇_i Σ L, both gradients before the step.
    """

    def __init__(self) -> None:
        self.w, self.b, self.q = list(W), B, [list(row) for row in START]

    def train(self, items: list[int], labels: list[int], clusters: list[int] | None) -> None:
        for start in range(0, len(items), 2):
            self._batch(items[start : start + 2], labels[start : start + 2], clusters)

    def _errors(self, items: list[int], labels: list[int]) -> list[float]:
        pairs = zip(items, labels, strict=True)
        return [(sigmoid(dot(self.w, self.q[i]) + self.b) - y) / len(items) for i, y in pairs]

    def _batch(self, items: list[int], labels: list[int], clusters: list[int] | None) -> None:
        errors = self._errors(items, labels)
        for d in (0, 1):
            pairs = zip(items, errors, strict=True)
            self.w[d] -= 0.5 * sum(e * self.q[i][d] for i, e in pairs)
        self.b -= 0.5 * sum(errors)
        errors = self._errors(items, labels)
        pull = [[0.0, 0.0]] * 3 if clusters is None else contrastive_gradient(self.q, clusters)
        for i, e in zip(items, errors, strict=True):
            self.q[i] = [q - 3 * e * w for q, w in zip(self.q[i], self.w, strict=True)]
        self.q = [
            [q - 0.2 * g for q, g in zip(row, own, strict=True)]
            for row, own in zip(self.q, pull, strict=True)
        ]


class Script:
    """A generator that answers as written: first centre, second, core user, cluster of items."""

    def __init__(self, core: int, cluster: int) -> None:
        self._integers, self._cluster = iter([0, core]), cluster

    def integers(self, _: int) -> int:
        return next(self._integers)

    def random(self) -> float:
        return 0.999  # the second centre is the last item that is not at the first

    def choice(self, labels: Any) -> int:
        assert sorted(labels) == [0, 1]
        return self._cluster


def group_by_hand(tables: list[Table], core: int, items: list[int]) -> list[int]:
    """Likeness, ranks with the core first, and the point farthest below or above the chord."""

    def cosine(a: list[float], b: list[float]) -> float:
        return dot(a, b) / math.hypot(*a) / math.hypot(*b)

    likeness = [sum(cosine(tables[core][i], own[i]) for i in items) for own in tables]
    others = sorted((u for u in range(len(tables)) if u != core), key=lambda u: -likeness[u])
    ranked = [core, *others]
    y, last = [likeness[u] for u in ranked], len(ranked) - 1
    run, rise = last, y[-1] - y[0]
    distance = [
        abs(rise * x - run * (y[x] - y[0])) / math.hypot(run, rise) for x in range(last + 1)
    ]
    assert max(distance) > 0
    return ranked[: distance.index(max(distance)) + 1]


def mean(tables: list[Table]) -> Table:
    return [[sum(t[i][d] for t in tables) / len(tables) for d in (0, 1)] for i in range(3)]


def close(got: torch.Tensor, expected: object) -> None:
    torch.testing.assert_close(
        got.double(), torch.tensor(expected).double(), rtol=NUMERIC, atol=NUMERIC
    )


def private_of(strategy: CoFedRec) -> Tensors:
    drawn = {n: t.double() for n, t in strategy.init_private(3, RNG).items()}
    return drawn | {WEIGHT: torch.tensor(W).double(), BIAS: torch.tensor(B).double()}


@pytest.mark.parametrize("start_from", ["initial", "mean"])
def test_two_rounds_of_four_users(start_from: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users 0, 2, 5 and 7; items 0 and 1 lie together and item 2 opposite, so these are clusters.

    Round 1 has no labels and trains from the first table. The core is the second user, the
    cluster {0, 1}. Round 2 has labels; the group trains from its mean, the others from their own.
    """
    cfg = CoFedRecConfig(**{**CONFIG.__dict__, "start_from": start_from})
    strategy = CoFedRec(cfg, LinearScoring(factors=2))
    shared = {ITEM: torch.tensor(START).double(), LABELS: torch.full((3,), -1.0).double()}
    users, state = np.array(list(SAMPLES)), strategy.init_server_state(shared)
    private = {user: private_of(strategy) for user in SAMPLES}
    hands, clusters = {user: ByHand() for user in SAMPLES}, None
    monkeypatch.setattr(strategy, "server_rng", lambda step: Script(core=1, cluster=0))
    for round_ in (1, 2):
        downlinks, uploads = strategy.downlinks(users), []
        for user, (items, labels) in SAMPLES.items():
            hands[user].train(items, labels, clusters)
            samples = Samples(np.array(items), np.array(labels, dtype=np.float32))
            sent = {n: t.double() for n, t in downlinks.get(user, {}).items()}
            result = strategy.client_update(shared | sent, private[user], [samples], RNG)
            private[user] = dict(result.private)
            assert result.individual is not None
            close(result.individual[ITEM], hands[user].q)
            close(private[user][OWN], hands[user].q)
            close(private[user][WEIGHT], hands[user].w)
            close(private[user][BIAS], hands[user].b)
            assert (result.metrics["supcon_loss"] > 0) == (round_ == 2)
            uploads.append(result.individual[ITEM])
        updates = IndividualUpdates(users, {ITEM: torch.stack(uploads)})
        shared, state = strategy.individual_server_update(shared, updates, state)
        tables = [hands[user].q for user in SAMPLES]
        close(shared[ITEM], mean(tables) if start_from == "mean" else START)
        assert shared[LABELS].tolist() == [0, 0, 1]
        clusters = [0, 0, 1]
        places = group_by_hand(tables, 1, [0, 1])
        assert 1 < len(places) < 4, "the group must not be trivial"
        assert state["group_size"] == len(places)
        members = {users[place]: mean([tables[p] for p in places]) for place in places}
        ranked = strategy.evaluation_personal(np.arange(9))
        assert sorted(ranked) == sorted(members)
        for user, table in members.items():
            close(ranked[user][GROUP], table)
            hands[user].q = [list(row) for row in table]
