"""CoFedRec: contrastive loss, clusters, elbow and groups by hand; tables that wait for users."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models import supcon as supcon_module
from models.kmeans import kmeans
from models.linear import BIAS, ITEM, WEIGHT, LinearScoring
from models.mf import MatrixFactorisation
from models.supcon import Temperatures, supcon
from models.types import History, IndividualUpdates, Samples, Tensors
from strategies.cofedrec import GROUP, LABELS, CoFedRec, CoFedRecConfig
from strategies.own_tables import HAS_OWN, OWN
from strategies.user_groups import elbow, group_of, likeness

RNG = np.random.default_rng(0)
MODEL = LinearScoring(factors=4)
NONE = History(np.empty(0, dtype=np.int64), np.zeros(1, dtype=np.int64))
AT = Temperatures(0.5, 1.0)


# ---- the contrastive loss ------------------------------------------------------------------
def test_contrastive_loss_by_hand() -> None:
    """τ = 1/2, τ₀ = 1. Items 0 and 1 are one cluster at a right angle, item 2 is 1's opposite.

    Lengths do not count. Item 0: cosines 0 and 0, so -1/2 · (0 - log 2). Item 1: cosines 0 and
    -1, so +1/2 · log(1 + e⁻²). Item 2 is alone: 0.
    """
    rows = torch.tensor([[3.0, 0.0], [0.0, 0.5], [0.0, -2.0]]).double()
    losses, _ = supcon(rows, torch.tensor([7.0, 7.0, 1.0]), AT)
    expected = [math.log(2) / 2, math.log(1 + math.exp(-2)) / 2, 0.0]
    # ε = 1e-6 in the divisor and, as exp((c - 1)/τ) ≥ e⁻⁴, at most 3e-5 in the logarithm.
    torch.testing.assert_close(losses.tolist(), expected, rtol=0, atol=5e-5)


def reference(rows_ID: torch.Tensor, labels_I: torch.Tensor, at: Temperatures) -> torch.Tensor:
    """The loss of each item with all pairs written out."""
    z_ID = torch.nn.functional.normalize(rows_ID, dim=1)
    logits_II = (z_ID @ z_ID.T - 1) / at.tau
    others_II = 1 - torch.eye(len(rows_ID)).to(rows_ID)
    near_II = (labels_I[:, None] == labels_I).to(rows_ID) * others_II
    sums_I1 = (logits_II.exp() * others_II).sum(1, keepdim=True) + 1e-6
    means_I = (near_II * (logits_II - sums_I1.log())).sum(1) / (near_II.sum(1) + 1e-6)
    return -at.tau / at.base * means_I


@pytest.mark.parametrize("kept", [0, 60 * 120], ids=["computed-twice", "kept"])
@pytest.mark.parametrize("block", [1, 7, 1000], ids=["row-by-row", "uneven", "whole"])
def test_closed_form_equals_automatic_differentiation(
    block: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supcon_module, "BLOCK_ITEMS", block)
    monkeypatch.setattr(supcon_module, "KEPT_VALUES", kept)
    rng = torch.Generator().manual_seed(0)
    rows_ID = torch.randn(60, 5, generator=rng, dtype=torch.float64, requires_grad=True)
    labels_I = torch.randint(0, 9, (60,), generator=rng)
    labels_I[4] = 99  # alone
    at = Temperatures(0.1, 0.5)
    expected_I = reference(rows_ID, labels_I, at)
    (expected_ID,) = torch.autograd.grad(expected_I.sum(), rows_ID)
    losses_I, gradient_ID = supcon(rows_ID.detach(), labels_I, at)
    # Sixty terms of order 1/τ = 10 in float64.
    torch.testing.assert_close(losses_I, expected_I.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient_ID, expected_ID, rtol=1e-12, atol=1e-12)


def test_the_contrastive_loss_draws_clusters_together() -> None:
    rows_ID, labels_I = torch.eye(4).double(), torch.tensor([0, 0, 1, 1])
    before, gradient_ID = supcon(rows_ID, labels_I, AT)
    moved = rows_ID - 0.1 * gradient_ID
    assert supcon(moved, labels_I, AT)[0].sum() < before.sum()
    unit = torch.nn.functional.normalize(moved, dim=1)
    assert unit[0] @ unit[1] > 0 > unit[0] @ unit[2]


# ---- clusters and groups -------------------------------------------------------------------
def test_planted_clusters_are_found() -> None:
    """Three clouds of width 0.1 at a distance of 10: k-means++ starts in each of them."""
    rng = np.random.default_rng(1)
    planted = np.repeat([0, 1, 2], 20)
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    rows = (centres[planted] + 0.1 * rng.normal(size=(60, 2))).astype(np.float32)
    labels = kmeans(rows, 3, rng)
    for cloud in range(3):
        assert len(set(labels[planted == cloud])) == 1
    assert len(set(labels)) == 3


def test_lloyds_steps_by_hand() -> None:
    """Points 0, 1, 5, 6 on a line, centres 0 and 1: {0}, {1, 5, 6}. Means 0, 4: {0, 1}, {5, 6}."""

    class Script:
        def integers(self, _: int) -> int:
            return 0

        def random(self) -> float:
            return 0.001  # of 0 + 1 + 25 + 36 = 62: the point at 1

    rows = np.array([[0.0], [1.0], [5.0], [6.0]], dtype=np.float32)
    assert kmeans(rows, 2, Script()).tolist() == [0, 0, 1, 1]  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 15), st.integers(0, 99), st.booleans())
def test_clusters_are_a_fixed_point(items: int, clusters: int, seed: int, repeat: bool) -> None:
    """Same stream same labels; every row is nearest to the mean of its own cluster."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(items, 2)).astype(np.float32)
    rows = np.repeat(rows[:1], items, axis=0) if repeat else rows
    labels = kmeans(rows, clusters, np.random.default_rng(seed))
    assert np.array_equal(labels, kmeans(rows, clusters, np.random.default_rng(seed)))
    used = np.unique(labels)
    assert labels.min() >= 0
    assert len(used) <= min(clusters, len(np.unique(rows, axis=0)))
    means = np.stack([rows[labels == k].mean(axis=0) for k in used])
    apart = ((rows[:, None] - means) ** 2).sum(axis=2)
    own = apart[np.arange(items), np.searchsorted(used, labels)]
    assert (own <= apart.min(axis=1) + 1e-6).all()


def test_elbow_by_hand() -> None:
    """Of 10, 9, 2, 1 the chord is 10, 7, 4, 1: off by 0, 2, 2, 0, the first of the equal ones.

    Of 10, 2, 1, 0 it is 10, 6.67, 3.33, 0: off by 4.67 and 2.33.
    """
    assert elbow(np.array([10.0, 9.0, 2.0, 1.0])) == 1
    assert elbow(np.array([10.0, 9.5, 2.0, 1.0])) == 1
    assert elbow(np.array([10.0, 9.0, 1.0, 1.0])) == 2
    assert elbow(np.array([10.0, 2.0, 1.0, 0.0])) == 1


@pytest.mark.parametrize("flat", [[], [1.0], [3.0, 1.0], [2.0] * 5, [0.3, 0.2, 0.1], [0.0] * 4])
def test_a_curve_without_elbow(flat: list[float]) -> None:
    assert elbow(np.array(flat)) == 0


def test_likeness_is_summed_over_the_clusters_items() -> None:
    """Users' rows at angles to the core's (user 1): item 0 by 60°, 0°, 180°; item 2 by 90°, 0°, 0°.

    Item 1 is not of the cluster, and a row of zeros is like nothing.
    """
    angles = np.deg2rad([[60, 5, 90], [0, 80, 0], [180, 10, 0]])
    tables = np.stack([np.cos(angles), np.sin(angles)], axis=2).astype(np.float32) * 3
    tables = np.concatenate([tables, np.zeros((1, 3, 2), dtype=np.float32)])
    got = likeness(tables, 1, np.array([0, 2]))
    np.testing.assert_allclose(got, [0.5, 2, 0, 0], atol=1e-6)  # float32 rows


def test_the_core_comes_first_whatever_its_likeness() -> None:
    """Ranks: core 1 (0.5), then 2 (9), 0 (8), 3 (1): chord 0.5 to 1, farthest is rank 1."""
    assert group_of(np.array([8.0, 0.5, 9.0, 1.0]), 1).tolist() == [1, 2]
    assert group_of(np.array([4.0]), 0).tolist() == [0]


# ---- the strategy --------------------------------------------------------------------------
def strategy_of(**changes: Any) -> CoFedRec:
    return CoFedRec(CoFedRecConfig(**{"batch_size": 8, "clusters": 3, **changes}), MODEL)


def start() -> tuple[Tensors, Tensors, list[Samples]]:
    strategy = strategy_of()
    shared = strategy.init_shared(6, np.random.default_rng(1))
    labels = np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), 2)
    samples = Samples(np.arange(10) % 5, labels)
    return shared, strategy.start_private(6, 0, 3), [samples, samples]


def uploads(*users: int) -> IndividualUpdates:
    """Tables (6, 4) of users below 10 that are alike, and of others opposite to them."""
    base = torch.arange(24.0).reshape(6, 4) + 1
    tables = [(base + 0.01 * user) * (1 if user < 10 else -1) for user in users]
    return IndividualUpdates(np.array(users), {ITEM: torch.stack(tables)})


class Draws:
    """Core users by position, in turn; the rest from a real stream."""

    def __init__(self, core: int) -> None:
        self._calls, self._core, self._rng = 0, core, np.random.default_rng(0)

    def integers(self, high: int) -> int:
        self._calls += 1
        return self._core if self._calls == 2 else int(self._rng.integers(high))

    def random(self) -> float:
        return float(self._rng.random())

    def choice(self, values: Any) -> int:
        return int(values[0])


def test_a_groups_table_waits_until_its_member_is_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cohort 1, 2, 3, 11 with core 1: users below 10 are alike, so they are the group.

    In round 2 user 2 is trained with 12, 13, 14 and core 12, whose likes are these: 2's table
    was delivered, 1 and 3 still wait, and 12 to 14 have the new one.
    """
    strategy, cores = strategy_of(), iter([0, 1])
    monkeypatch.setattr(strategy, "server_rng", lambda step: Draws(next(cores)))
    shared, _, _ = start()
    state = strategy.init_server_state(shared)
    shared, state = strategy.individual_server_update(shared, uploads(1, 2, 3, 11), state)
    first = strategy.evaluation_personal(np.arange(20))
    assert sorted(first) == [1, 2, 3]
    assert state["group_size"] == 3
    for sent in first.values():
        torch.testing.assert_close(sent[GROUP], uploads(2).tensors[ITEM][0])
    shared, state = strategy.individual_server_update(shared, uploads(2, 12, 13, 14), state)
    second = strategy.downlinks(np.arange(20))
    assert sorted(second) == [1, 3, 12, 13, 14]
    assert torch.equal(second[1][GROUP], first[1][GROUP])
    torch.testing.assert_close(second[12][GROUP], uploads(13).tensors[ITEM][0])


def test_a_group_of_one_changes_nothing() -> None:
    strategy = strategy_of()
    shared, _, _ = start()
    state = strategy.init_server_state(shared)
    _, state = strategy.individual_server_update(shared, uploads(4), state)
    assert state["group_size"] == 1
    assert strategy.downlinks(np.arange(20)) == {}


def test_draws_are_the_runs_and_the_rounds() -> None:
    """The same seed and round give the same labels; another seed or round, other draws."""
    shared, _, _ = start()
    found = []
    for seed, round_ in [(0, 0), (0, 0), (1, 0), (0, 1)]:
        strategy = strategy_of()
        strategy.seed = seed
        state = strategy.init_server_state(shared) | {"round": torch.tensor(float(round_))}
        tables = torch.from_numpy(np.random.default_rng(5).normal(size=(9, 6, 4)).astype("f4"))
        updates = IndividualUpdates(np.arange(9), {ITEM: tables})
        moved, _ = strategy.individual_server_update(shared, updates, state)
        found.append((moved[LABELS].tolist(), sorted(strategy.downlinks(np.arange(9)))))
    assert found[0] == found[1]
    assert found[2] != found[0] != found[3]


def test_a_resumed_server_sends_the_same(tmp_path: Path) -> None:
    cohorts = [(1, 2, 3, 11), (2, 12, 13, 14), (1, 5, 6, 15), (3, 7, 12, 16)]
    sent = []
    for resumed in (False, True):
        strategy = strategy_of()
        strategy.workspace = tmp_path
        shared, _, _ = start()
        state, rounds = strategy.init_server_state(shared), cohorts
        if resumed:
            strategy.resumed(2)
            state["round"] += 2
            rounds = cohorts[2:]
        for users in rounds:
            shared, state = strategy.individual_server_update(shared, uploads(*users), state)
            strategy.checkpointed([2, int(state["round"])], [])
        sent.append(strategy.downlinks(np.arange(20)))
    assert sent[0].keys() == sent[1].keys()
    assert sent[0]
    assert all(torch.equal(sent[0][u][GROUP], sent[1][u][GROUP]) for u in sent[0])


def test_a_user_ranks_with_the_groups_its_own_or_the_shared_table() -> None:
    shared, private, epochs = start()
    strategy = strategy_of()
    result = strategy.client_update(shared, private, epochs, RNG)
    assert result.individual is not None
    assert private[HAS_OWN] == 0
    assert torch.equal(result.private[OWN], result.individual[ITEM])
    rows = [private, dict(result.private)]
    block = {n: torch.stack([row[n] for row in rows]) for n in private}
    tables = [shared[ITEM], result.individual[ITEM]]
    scores_UI = strategy.scores_all(shared, block, NONE)
    for row, table_ID, got_I in zip(rows, tables, scores_UI, strict=True):
        torch.testing.assert_close(got_I, table_ID @ row[WEIGHT] + row[BIAS])
    group_ID = torch.ones(6, 4)
    (got_I,) = strategy.scores_all(
        shared | {GROUP: group_ID}, {n: t[1:] for n, t in block.items()}, NONE
    )
    torch.testing.assert_close(got_I, group_ID @ rows[1][WEIGHT] + rows[1][BIAS])


def test_training_starts_where_ranking_ends() -> None:
    """The row of item 5 has no sample, and there are no labels yet: it shows the start."""
    shared, private, epochs = start()
    strategy = strategy_of()
    own = private | {OWN: torch.full((6, 4), 2.0), HAS_OWN: torch.ones(())}
    group = shared | {GROUP: torch.full((6, 4), 3.0)}
    for received, row, expected in [
        (shared, private, shared[ITEM][5]),
        (shared, own, torch.full((4,), 2.0)),
        (group, own, torch.full((4,), 3.0)),
        (group, private, torch.full((4,), 3.0)),
    ]:
        upload = strategy.client_update(received, row, epochs, RNG).individual
        assert upload is not None
        assert torch.equal(upload[ITEM][5], expected)


def test_a_sample_of_items_is_unbiased() -> None:
    """Of six items drawn as six the step is the exact one; of three it differs, and is seeded."""
    shared, private, epochs = start()
    labelled = shared | {LABELS: torch.tensor([0.0, 0, 1, 1, 2, 2])}

    def upload(items: int | None, seed: int) -> torch.Tensor:
        strategy = strategy_of(supcon_items=items, contrast=0.5)
        found = strategy.client_update(labelled, private, epochs, np.random.default_rng(seed))
        assert found.individual is not None
        return found.individual[ITEM]

    assert torch.equal(upload(None, 0), upload(6, 1))
    assert torch.equal(upload(3, 0), upload(3, 0))
    assert not torch.equal(upload(3, 0), upload(3, 1))


def test_without_contrast_only_rows_with_samples_move() -> None:
    shared, private, epochs = start()
    labelled = shared | {LABELS: torch.tensor([0.0, 0, 1, 1, 2, 2])}
    for contrast, moves in [(0.0, False), (0.1, True)]:
        result = strategy_of(contrast=contrast).client_update(labelled, private, epochs, RNG)
        assert result.individual is not None
        assert torch.equal(result.individual[ITEM][5], shared[ITEM][5]) != moves


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"clusters": 0}, "clusters"),
        ({"item_lr": 0.0}, "item_lr"),
        ({"tau": 0.0}, "tau"),
        ({"contrast": -1.0}, "contrast"),
        ({"supcon_items": 1}, "supcon_items"),
        ({"start_from": "zero"}, "start_from must be initial or mean"),
    ],
)
def test_settings_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CoFedRecConfig(**changes)


def test_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="model=linear"):
        CoFedRec(CoFedRecConfig(), MatrixFactorisation())  # type: ignore[arg-type]
