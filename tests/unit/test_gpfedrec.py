"""GPFedRec: the graph, targets under partial participation, resumes, scoring and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.mf import MatrixFactorisation
from models.types import History, IndividualUpdates, Samples, Tensors
from models.user_mlp import ITEM, UserMLP
from strategies.gpfedrec import TARGET, GPFedRec, GPFedRecConfig
from strategies.own_tables import HAS_OWN, OWN
from strategies.user_graph import GraphRule, UserGraph, adjacency, cosines
from strategies.user_tables import UserTables

RULE = GraphRule("similarity", 1.0, 0, 1)
RNG = np.random.default_rng(0)
MODEL = UserMLP(factors=4, mlp_layers=2)
NONE = History(np.empty(0, dtype=np.int64), np.zeros(1, dtype=np.int64))


def graph_of(vectors: list[list[float]], **changes: Any) -> np.ndarray:
    """Adjacency of users whose tables are these vectors."""
    vectors_UX = np.array(vectors)
    rule = GraphRule(**{**RULE.__dict__, **changes})
    return adjacency(vectors_UX @ vectors_UX.T, rule)


TASTES = [[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]]
"""Two groups: cosines are 1 within a group and 0 between them, whatever the lengths."""


def test_similar_users_are_linked_and_dissimilar_ones_as_released() -> None:
    """Affinities are 1 and 1/2 with a mean of 3/4; distances 0 and 1 with a mean of 1/2."""
    own, other = [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]
    np.testing.assert_array_equal(graph_of(TASTES), [own, own, other, other])
    np.testing.assert_array_equal(graph_of(TASTES, affinity="released"), [other, other, own, own])


def test_gamma_tightens_for_either_affinity() -> None:
    """γ = 4/3 asks for affinity above 1: nobody, so each is alone. γ = 0.6 admits all (> 0.45)."""
    np.testing.assert_array_equal(graph_of(TASTES, gamma=4 / 3), np.eye(4))
    np.testing.assert_array_equal(graph_of(TASTES, gamma=0.6), np.full((4, 4), 0.25))
    np.testing.assert_array_equal(graph_of(TASTES, gamma=2.0, affinity="released"), np.eye(4))


def test_greatest_affinities_instead_of_a_threshold() -> None:
    """Angles 0°, 10°, 30°, 90°: the two nearest of each, itself among them."""
    angles = np.deg2rad([0, 10, 30, 90])
    got = graph_of(np.stack([np.cos(angles), np.sin(angles)], axis=1).tolist(), neighbours=2)
    linked = [[0, 1], [0, 1], [1, 2], [2, 3]]
    expected = np.zeros((4, 4))
    for user, near in enumerate(linked):
        expected[user, near] = 0.5
    np.testing.assert_array_equal(got, expected)


def test_users_alike_to_the_last_digit_stay_alone() -> None:
    """All affinities are 1 up to rounding, none is above the mean; averaging would be a no-op."""
    np.testing.assert_array_equal(graph_of([[0.1, 0.7]] * 3), np.eye(3))


def test_a_table_of_zeros_is_like_nobody() -> None:
    gram = np.array([[0.0, 0.0], [0.0, 4.0]])
    np.testing.assert_array_equal(cosines(gram), [[0.0, 0.0], [0.0, 1.0]])


@settings(max_examples=50, deadline=None)
@given(
    users=st.integers(1, 9),
    seed=st.integers(0, 99),
    affinity=st.sampled_from(["similarity", "released"]),
    gamma=st.floats(0, 2),
    neighbours=st.integers(0, 9),
)
def test_weights_are_shares(
    users: int, seed: int, affinity: str, gamma: float, neighbours: int
) -> None:
    vectors_UX = np.random.default_rng(seed).normal(size=(users, 5)).tolist()
    rows = graph_of(vectors_UX, affinity=affinity, gamma=gamma, neighbours=neighbours)
    assert (rows >= 0).all()
    np.testing.assert_allclose(rows.sum(axis=1), 1, rtol=1e-12)
    if neighbours:
        assert ((rows > 0).sum(axis=1) == min(neighbours, users)).all()


def test_layers_are_powers(tmp_path: Path) -> None:
    tables = UserTables(tmp_path)
    tables.put(1, np.array([2, 4, 7]), RNG.normal(size=(3, 2, 2)).astype(np.float32))
    once = UserGraph(tables, GraphRule("similarity", 1.0, 2, 1)).weights(np.array([2, 4, 7]))
    thrice = UserGraph(tables, GraphRule("similarity", 1.0, 2, 3)).weights(np.array([7, 2]))
    np.testing.assert_allclose(thrice, np.linalg.matrix_power(once, 3)[[2, 0]], rtol=1e-12)


def test_a_graph_kept_up_equals_a_fresh_one(tmp_path: Path) -> None:
    """Tables come, change, and go again at a resume; products are exact to 1e-13 either way."""
    tables = UserTables(tmp_path)
    kept = UserGraph(tables, RULE)
    for round_, users in enumerate([[1, 5, 8], [5, 2], [0, 8, 9]], start=1):
        tables.put(round_, np.array(users), RNG.normal(size=(len(users), 3, 2)).astype("f4"))
        np.testing.assert_array_equal(
            kept.weights(tables.users()), UserGraph(tables, RULE).weights(tables.users())
        )
    tables.forget_after(1)
    np.testing.assert_array_equal(
        kept.weights(tables.users()), UserGraph(tables, RULE).weights(tables.users())
    )
    np.testing.assert_array_equal(kept.users_U, [1, 5, 8])


# ---- the strategy --------------------------------------------------------------------------
def strategy_of(**changes: Any) -> GPFedRec:
    return GPFedRec(GPFedRecConfig(batch_size=8, **changes), MODEL)


def uploads(users: list[int], values: list[float]) -> IndividualUpdates:
    """Tables (6, 4) of which rows of two kinds set users of even and odd value apart."""
    tables = []
    for value in values:
        table = torch.zeros(6, 4)
        table[int(value) % 2] = value
        tables.append(table)
    return IndividualUpdates(np.array(users), {ITEM: torch.stack(tables)})


def test_targets_come_from_the_latest_table_of_everybody_seen() -> None:
    """Round 1 has users 1 (table of kind 1), 4 (kind 0); round 2 user 6 (kind 1) alone.

    Users 1 and 6 are linked, so both have the mean of 1 and 3, and after round 2 the shared
    table is that of the cohort's only member. User 9 was never seen and has no target.
    """
    strategy = strategy_of()
    shared = {ITEM: torch.ones(6, 4)}
    state = strategy.init_server_state(shared)
    assert strategy.downlinks(np.array([1, 4])) == {}
    shared, state = strategy.individual_server_update(shared, uploads([1, 4], [1, 2]), state)
    first, second = uploads([0, 0], [1, 2]).tensors[ITEM]
    torch.testing.assert_close(shared[ITEM], (first + second) / 2)
    shared, state = strategy.individual_server_update(shared, uploads([6], [3]), state)
    assert state["round"] == 2
    torch.testing.assert_close(shared[ITEM], 2 * first)
    sent = strategy.downlinks(np.array([1, 4, 6, 9]))
    assert sorted(sent) == [1, 4, 6]
    for user, table in [(1, 2 * first), (6, 2 * first), (4, second)]:
        torch.testing.assert_close(sent[user][TARGET], table)


def test_the_mean_counts_hubs_more() -> None:
    """Top-2 of angles 0°, 10°, 30°: targets (0, 1), (0, 1), (1, 2); their mean is not the mean.

    Shares of the tables are 2/6, 3/6 and 1/6.
    """
    strategy = strategy_of(neighbours=2)
    tables = torch.zeros(3, 6, 4)
    angles = torch.deg2rad(torch.tensor([0.0, 10.0, 30.0]))
    tables[:, 0, 0], tables[:, 0, 1] = angles.cos(), angles.sin()
    shared = {ITEM: torch.zeros(6, 4)}
    updates = IndividualUpdates(np.arange(3), {ITEM: tables})
    moved, _ = strategy.individual_server_update(
        shared, updates, strategy.init_server_state(shared)
    )
    shares = torch.tensor([2.0, 3.0, 1.0]) / 6
    torch.testing.assert_close(moved[ITEM], (shares[:, None, None] * tables).sum(0))


def test_the_server_optimiser_may_go_half_the_way() -> None:
    strategy = strategy_of(server_lr=0.5)
    shared = {ITEM: torch.ones(6, 4)}
    updates = uploads([1], [1])
    moved, _ = strategy.individual_server_update(
        shared, updates, strategy.init_server_state(shared)
    )
    torch.testing.assert_close(moved[ITEM], (1 + updates.tensors[ITEM][0]) / 2)


def test_a_resumed_server_sends_the_same(tmp_path: Path) -> None:
    """Another process opens the folder, forgets a round too much, and makes it again."""
    sent = []
    for resumed in (False, True):
        strategy = strategy_of()
        strategy.workspace = tmp_path
        shared = {ITEM: torch.ones(6, 4)}
        state = strategy.init_server_state(shared)
        rounds = [uploads([1, 4], [1, 2]), uploads([4, 6], [4, 3]), uploads([1, 7], [6, 2])]
        if resumed:
            strategy.resumed(1)
            state["round"] += 1
            rounds = rounds[1:]
        for updates in rounds:
            shared, state = strategy.individual_server_update(shared, updates, state)
            strategy.checkpointed([int(state["round"]) - 1, int(state["round"])], [])
        sent.append(strategy.downlinks(np.arange(9)))
        assert state["round"] == 3
    assert sent[0].keys() == sent[1].keys() == {1, 4, 6, 7}
    assert all(torch.equal(sent[0][u][TARGET], sent[1][u][TARGET]) for u in sent[0])


def drawn() -> tuple[Tensors, Tensors, list[Samples]]:
    shared = MODEL.init_shared(6, np.random.default_rng(1))
    private = strategy_of().start_private(6, 0, 3)
    labels = np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), 2)
    return shared, private, [Samples(np.arange(10) % 5, labels)]


def test_without_a_gradient_only_the_pull_moves_the_copy() -> None:
    """Two batches at pull 1/4 leave (3/4)² of the way; the row of item 5 has no sample."""
    shared, private, epochs = drawn()
    received = shared | {TARGET: torch.zeros(6, 4)}
    result = strategy_of(pull=0.25).client_update(received, private, epochs, RNG)
    assert result.individual is not None
    torch.testing.assert_close(result.individual[ITEM][5], shared[ITEM][5] * 9 / 16)
    alone = strategy_of(pull=0.25).client_update(shared, private, epochs, RNG).individual
    assert alone is not None
    torch.testing.assert_close(alone[ITEM][5], shared[ITEM][5])


def test_users_rank_with_their_copy_once_they_have_one() -> None:
    strategy, shared_only = strategy_of(), strategy_of(score_with="shared")
    shared, private, epochs = drawn()
    assert OWN not in shared_only.init_private(6, RNG)
    result = strategy.client_update(shared, private, epochs, RNG)
    assert result.individual is not None
    rows = [private, result.private]
    block = {n: torch.stack([row[n] for row in rows]) for n in private}
    scores_UI = strategy.scores_all(shared, block, NONE)
    for row, table, got in zip(rows, (shared, result.individual), scores_UI, strict=True):
        own = strategy.private_parameters(dict(row))
        expected = MODEL.logits({ITEM: table[ITEM]}, own, torch.arange(6))
        torch.testing.assert_close(got, expected)
    plain = {n: t for n, t in block.items() if n not in (OWN, HAS_OWN)}
    got = shared_only.scores_all(shared, plain, NONE)[1]
    own = strategy.private_parameters(dict(result.private))
    torch.testing.assert_close(got, MODEL.logits(shared, own, torch.arange(6)))


def test_a_user_who_comes_later_adapts_with_a_copy_of_its_own() -> None:
    shared, private, epochs = drawn()
    strategy = strategy_of()
    adapted = strategy.adapt(shared, private, epochs, RNG)
    trained = strategy.client_update(shared, private, epochs, RNG).private
    assert all(torch.equal(adapted[n], trained[n]) for n in trained)
    plain = strategy_of(score_with="shared").init_private(6, RNG)
    other = strategy_of(score_with="shared").adapt(shared, plain, epochs, RNG)
    assert OWN not in other
    assert not torch.equal(other["user_emb"], plain["user_emb"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pull": 2.0}, "pull must lie in"),
        ({"pull": -0.1}, "pull must lie in"),
        ({"batch_size": 0}, "batch_size"),
        ({"mp_layers": 0}, "mp_layers"),
        ({"mlp_lr": 0.0}, "mlp_lr"),
        ({"gamma": -1.0}, "gamma"),
        ({"affinity": "cosine"}, "affinity must be one of similarity, released"),
        ({"score_with": "mine"}, "score_with must be one of own, shared"),
    ],
)
def test_settings_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GPFedRecConfig(**changes)


def test_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="model=user_mlp"):
        GPFedRec(GPFedRecConfig(), MatrixFactorisation())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings_", "message"),
    [({"factors": 6, "mlp_layers": 3}, "multiple of 4"), ({"init_std": 0.0}, "init_std")],
)
def test_the_model_s_settings_are_checked(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UserMLP(**settings_)
