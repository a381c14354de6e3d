"""PerFedRec's star-graph variant against hand-derived numbers and torch's optimisers."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from models.kmeans import kmeans
from models.linear import LinearScoring
from models.mf import ITEM, USER, MatrixFactorisation
from models.rng import Role, derive_rng
from models.star_graph import star_scores, triples_of
from models.types import History, IndividualUpdates, Samples, Tensors
from strategies.perfedrec import (
    CLUSTER,
    CLUSTERS,
    HAS_OWN,
    MOVED,
    OWN,
    VECTOR,
    PerFedRec,
)
from strategies.perfedrec_config import PerFedRecConfig
from strategies.user_clusters import (
    CENTRES,
    LABELS,
    USERS,
    clustered,
    labels_of,
    no_clusters,
    projected,
)

NUM_ITEMS = 19
MODEL = MatrixFactorisation(factors=4, init_std=0.5)
ONE = MatrixFactorisation(factors=1)
RNG = np.random.default_rng(0)
# float64 rounding of some hundred terms over a few steps is below 1e-13.
EXACT = 1e-10


def samples(user: int, positives: int = 6) -> Samples:
    rng = derive_rng(0, Role.TRAIN, user)
    labels_S = np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), positives)
    return Samples(rng.integers(0, NUM_ITEMS, len(labels_S)), labels_S)


def start(strategy: PerFedRec, num_items: int = NUM_ITEMS) -> tuple[Tensors, Tensors]:
    rng = np.random.default_rng(3)
    shared, private = strategy.init_shared(num_items, rng), strategy.init_private(num_items, rng)
    return {n: t.double() for n, t in shared.items()}, {n: t.double() for n, t in private.items()}


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=EXACT, atol=EXACT)


# ---- the star ------------------------------------------------------------------------------
def test_scores_by_hand() -> None:
    """D = 1, u = 4, items (1, 3, 5), the first two the user's: ū = (4 + 2) / 2 = 3.

    Without items the mean is 0 and ū = 2.
    """
    table = torch.tensor([[1.0], [3.0], [5.0]])
    users, own = torch.tensor([[4.0], [4.0]]), torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    assert star_scores(table, users, own).tolist() == [[3, 9, 15], [2, 6, 10]]
    assert star_scores(table.expand(2, 3, 1), users, own).tolist() == [[3, 9, 15], [2, 6, 10]]


def test_negatives_go_with_the_positive_before_them() -> None:
    """Two negatives of item 7, one of item 2: weights 1/2, 1/2 and 1."""
    drawn = Samples(np.array([7, 4, 9, 2, 4]), np.array([1, 0, 0, 1, 0], dtype=np.float32))
    triples = triples_of(drawn, np.array([2, 4, 7, 9]), np.array([2, 7]), torch.zeros(1))
    assert triples.positives_P.tolist() == [2, 2, 0]
    assert triples.negatives_P.tolist() == [1, 3, 1]
    assert triples.weights_P.tolist() == [0.5, 0.5, 1]
    assert triples.own_R.tolist() == [1, 0, 1, 0]


def test_one_step_by_hand() -> None:
    """D = 1, u = 2, items (1, 3, 5): positives 0 and 1, each with the negative 2; plain steps.

    The mean of the other items is 3 for the first and 1 for the second, so ū is 5/2 and 3/2 and
    the gaps are -10 and -3. With e = σ(-gap) / 2 each, the gradient by u is
    e₀·(4/2) + e₁·(2/2), by item 2 it is e₀·5/2 + e₁·3/2, by item 0 it is -e₀·5/2 + e₁·(2/2).
    """
    config = PerFedRecConfig(private_optimiser="sgd", private_lr=0.5, item_lr=0.25, reg=0.0)
    strategy = PerFedRec(config, ONE)
    table = torch.tensor([[1.0], [3.0], [5.0]]).double()
    shared = {ITEM: table, CLUSTERS: table.repeat(2, 1, 1)}
    private = {
        USER: torch.tensor([2.0]).double(),
        OWN: 0 * table,
        HAS_OWN: torch.zeros(()).double(),
    }
    epoch = Samples(np.array([0, 2, 1, 2]), np.array([1, 0, 1, 0], dtype=np.float32))
    result = strategy.client_update(shared, private, [epoch], RNG)
    e0, e1 = 1 / (1 + math.exp(-10)) / 2, 1 / (1 + math.exp(-3)) / 2
    assert result.private[USER].item() == pytest.approx(2 - 0.5 * (2 * e0 + e1))
    by_item = [-2.5 * e0 + e1, 2 * e0 - 1.5 * e1, 2.5 * e0 + 1.5 * e1]
    assert result.individual is not None
    moved = [-0.25 * g for g in by_item]
    assert result.individual[MOVED].flatten().tolist() == pytest.approx(moved)
    close(result.private[OWN], table + result.individual[MOVED])
    assert result.private[HAS_OWN].item() == 1
    loss = (math.log(1 + math.exp(10)) + math.log(1 + math.exp(3))) / 2
    assert result.metrics == pytest.approx({"loss": loss, "num_samples": 4})
    assert not result.update.tensors
    assert result.update.weight == 1


def dense_loss(table: Tensor, user: Tensor, epoch: Samples, own: list[int], reg: float) -> Tensor:
    """The loss pair by pair."""
    losses, positive, count = [], -1, int((epoch.labels_S > 0).sum())
    rows = np.unique(epoch.items_S)
    for item, label in zip(epoch.items_S.tolist(), epoch.labels_S.tolist(), strict=True):
        if label > 0:
            positive = item
            continue
        others = [other for other in own if other != positive]
        mean = table[others].sum(0) / max(len(others), 1)
        gap = (user + mean) / 2 @ (table[positive] - table[item])
        losses.append(-functional.logsigmoid(gap) / 4)
    norms = (table[rows] ** 2).sum() + (user**2).sum()
    return torch.stack(losses).sum() / count + reg / 2 * norms


def test_epochs_equal_torch_optimisers() -> None:
    """Two steps of Adam on the vector and of SGD on the items, from the cluster's table."""
    config = PerFedRecConfig(private_lr=0.1, item_lr=0.7, reg=0.05, local_epochs=2, clusters=5)
    strategy = PerFedRec(config, MODEL)
    shared, private = start(strategy)
    shared[CLUSTERS][3] += 0.2
    epoch = samples(0)
    own = sorted({*epoch.items_S[epoch.labels_S > 0].tolist()})
    received = {**shared, CLUSTER: torch.tensor([3])}
    result = strategy.client_update(received, private, [epoch, epoch], RNG)
    table = torch.nn.Parameter(shared[CLUSTERS][3].clone())
    user = torch.nn.Parameter(private[USER].clone())
    adam, sgd = torch.optim.Adam([user], lr=0.1), torch.optim.SGD([table], lr=0.7)
    for _ in range(2):
        adam.zero_grad()
        sgd.zero_grad()
        dense_loss(table, user, epoch, own, 0.05).backward()  # type: ignore[no-untyped-call]
        adam.step()
        sgd.step()
    close(result.private[USER], user.detach())
    close(result.private[OWN], table.detach())
    assert result.individual is not None
    close(result.individual[MOVED], table.detach() - shared[CLUSTERS][3])


def test_the_vector_is_uploaded_only_where_it_is_shared() -> None:
    for share in (False, True):
        strategy = PerFedRec(PerFedRecConfig(share_user=share), MODEL)
        shared, private = start(strategy)
        result = strategy.client_update(shared, private, [samples(0)], RNG)
        assert result.individual is not None
        assert (VECTOR in result.individual) == share
        assert set(strategy.individual_template(shared)) == set(result.individual)
        if share:
            close(result.individual[VECTOR], result.private[USER])


# ---- the blend -----------------------------------------------------------------------------
def test_blend_by_hand() -> None:
    """u = 2 and no items, so a table's scores are its rows: 1 (own), 10 (cluster), 100 (common)."""
    config = PerFedRecConfig(own_weight=1.0, cluster_weight=2.0, common_weight=3.0, clusters=2)
    strategy = PerFedRec(config, ONE)
    shared = {
        ITEM: torch.full((2, 1), 100.0),
        CLUSTERS: torch.tensor([[[7.0], [7.0]], [[10.0], [10.0]]]),
    }
    nobody = History(np.array([], dtype=np.int64), np.array([0, 0]))
    private = {
        USER: torch.full((2, 1), 2.0),
        OWN: torch.ones(2, 2, 1),
        HAS_OWN: torch.tensor([1.0, 0.0]),
    }
    plain = strategy.scores_all(shared, private, nobody)
    assert plain[:, 0].tolist() == pytest.approx([(1 + 300) / 4, 100])
    member = {**shared, CLUSTER: torch.tensor([1])}
    blended = strategy.scores_all(member, private, nobody)
    assert blended[:, 0].tolist() == pytest.approx([(1 + 20 + 300) / 6, (20 + 300) / 5])
    items_UC = np.array([[1], [0]])
    close(strategy.score_candidates(member, private, items_UC, nobody), blended[:, :1])


def test_without_own_weight_there_is_no_own_table() -> None:
    strategy = PerFedRec(PerFedRecConfig(own_weight=0.0), MODEL)
    shared, private = start(strategy)
    assert OWN not in private
    result = strategy.client_update(shared, private, [samples(0)], RNG)
    assert set(result.private) == set(private)
    block = {n: t[None] for n, t in result.private.items()}
    history = History(np.array([1, 4]), np.array([2]))
    own = history.one_hot(NUM_ITEMS).double()
    expected = star_scores(shared[ITEM], block[USER], own)
    close(strategy.scores_all(shared, block, history), expected)


# ---- the server ----------------------------------------------------------------------------
def test_server_steps_by_hand() -> None:
    """Users 3 and 8 move the item by 1 and 5; they end in different clusters.

    Plain steps of rate 1: the common table moves by 3, the two clusters by 1 and 5.
    """
    config = PerFedRecConfig(clusters=2, server_optimiser="sgd", server_lr=1.0, share_user=True)
    strategy = PerFedRec(config, ONE)
    shared = strategy.init_shared(1, RNG)
    at = shared[ITEM].item()
    uploads = {MOVED: torch.tensor([[[1.0]], [[5.0]]]), VECTOR: torch.tensor([[1.0], [-1.0]])}
    updates = IndividualUpdates(np.array([3, 8]), uploads)
    state = strategy.init_server_state(shared)
    moved, state = strategy.individual_server_update(shared, updates, state)
    assert moved[ITEM].item() == pytest.approx(at + 3)
    assert sorted(moved[CLUSTERS].flatten().tolist()) == pytest.approx([at + 1, at + 5])
    strategy.set_shared(moved, state)
    downlinks = strategy.downlinks(np.array([3, 5, 8]))
    assert set(downlinks) == {3, 8}  # user 5 was never seen
    for user, movement in ((3, 1), (8, 5)):
        cluster = int(downlinks[user][CLUSTER])
        assert moved[CLUSTERS][cluster].item() == pytest.approx(at + movement)
    assert strategy.evaluation_personal(np.array([8])) == {8: downlinks[8]}


def test_a_cluster_without_members_in_the_round_stays_with_its_moments() -> None:
    strategy = PerFedRec(PerFedRecConfig(clusters=2, share_user=True), MODEL)
    shared = strategy.init_shared(NUM_ITEMS, RNG)
    state = strategy.init_server_state(shared)

    def step(users: list[int], signs: list[float]) -> tuple[Tensors, Tensors]:
        vectors = torch.tensor(signs)[:, None] * torch.ones(4)
        uploads = {MOVED: torch.ones(len(users), NUM_ITEMS, 4), VECTOR: vectors}
        updates = IndividualUpdates(np.array(users), uploads)
        return strategy.individual_server_update(shared, updates, state)

    shared, state = step([1, 2], [1.0, -1.0])
    before, old = shared, state
    shared, state = step([1], [1.0])
    mine = labels_of(state, np.array([1]))[1]
    assert torch.equal(shared[CLUSTERS][1 - mine], before[CLUSTERS][1 - mine])
    assert torch.equal(state["adam_m/tables"][2 - mine], old["adam_m/tables"][2 - mine])
    assert not torch.equal(shared[CLUSTERS][mine], before[CLUSTERS][mine])
    assert state["adam_step"].tolist() == ([2, 2, 1] if mine == 0 else [2, 1, 2])


def test_first_server_step_of_adam_by_hand() -> None:
    """Adam's first step is its rate in the direction of the mean movement."""
    strategy = PerFedRec(PerFedRecConfig(server_lr=0.05), MODEL)
    shared = strategy.init_shared(NUM_ITEMS, RNG)
    uploads = {MOVED: torch.full((3, NUM_ITEMS, 4), -2.0)}
    updates = IndividualUpdates(np.arange(3), uploads)
    state = strategy.init_server_state(shared)
    moved, _ = strategy.individual_server_update(shared, updates, state)
    torch.testing.assert_close(moved[ITEM], shared[ITEM] - 0.05)


# ---- clusters ------------------------------------------------------------------------------
def directions(angles: list[float]) -> Tensor:
    return torch.tensor([[math.cos(a), math.sin(a)] for a in angles])


def test_users_of_one_direction_are_in_one_cluster_and_stay_there() -> None:
    """Lengths do not count; the cluster of a direction keeps its number when others join."""
    rng = np.random.default_rng(0)
    state = no_clusters(2, 2)
    sketches = directions([0.0, 0.1, 3.0, 3.1]) * torch.tensor([[1.0], [50.0], [1.0], [0.1]])
    state = clustered(state, np.array([4, 9, 2, 7]), sketches, rng)
    first = labels_of(state, np.array([2, 4, 7, 9]))
    assert first[4] == first[9] != first[2] == first[7]
    for round_ in range(5):
        rng = np.random.default_rng(100 + round_)
        state = clustered(state, np.array([1 + 20 * round_]), directions([3.05]), rng)
        assert labels_of(state, np.array([2, 4, 7, 9])) == first
        assert labels_of(state, np.array([1 + 20 * round_]))[1 + 20 * round_] == first[2]
    assert state[USERS].tolist() == sorted(state[USERS].tolist())


def test_a_new_sketch_replaces_the_user_s_old_one() -> None:
    state = clustered(no_clusters(2, 2), np.arange(4), directions([0.0, 0.1, 3.0, 3.1]), RNG)
    moved = clustered(state, np.array([0]), directions([3.05]), RNG)
    labels = labels_of(moved, np.arange(4))
    assert labels[0] == labels[2] != labels[1]
    assert len(moved[USERS]) == 4


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12, unique=True), st.integers(1, 6))
@settings(deadline=None, max_examples=30)
def test_state_has_a_label_for_every_user_seen(users: list[int], clusters: int) -> None:
    users_U = np.sort(np.array(users))
    rng = np.random.default_rng(len(users))
    sketches = torch.from_numpy(rng.standard_normal((len(users), 3), dtype=np.float32))
    state = clustered(no_clusters(clusters, 3), users_U, sketches, rng)
    assert state[USERS].tolist() == users_U.tolist()
    assert 0 <= int(state[LABELS].min()) <= int(state[LABELS].max()) < clusters
    for label in set(state[LABELS].tolist()):
        members = functional.normalize(sketches, dim=1)[state[LABELS] == label]
        torch.testing.assert_close(state[CENTRES][label], members.mean(0), rtol=1e-5, atol=1e-6)


def test_given_centres_number_the_clusters() -> None:
    rows = np.array([[0.0], [0.1], [9.0], [9.1]], dtype=np.float32)
    for centres, expected in (([[0.0], [9.0]], [0, 0, 1, 1]), ([[9.0], [0.0]], [1, 1, 0, 0])):
        start_KD = np.array(centres, dtype=np.float32)
        assert kmeans(rows, 2, RNG, start_KD).tolist() == expected


def test_a_projection_keeps_inner_products_on_average() -> None:
    """⟨Px, Py⟩ has mean ⟨x, y⟩ and variance (⟨x, y⟩² + ‖x‖²‖y‖²)/width for D = 1.

    Over n = 400 projections of width 8 the mean errs by at most 4 standard errors.
    """
    rng = np.random.default_rng(1)
    x, y = (torch.from_numpy(rng.standard_normal((30, 1), dtype=np.float32)) for _ in range(2))
    both, draws = torch.stack([x, y]), 400
    products = []
    for _ in range(draws):
        sketches = projected(both, 8, rng)
        assert sketches.shape == (2, 8)
        products.append(float(sketches[0] @ sketches[1]))
    inner = float((x * y).sum())
    variance = (inner**2 + float((x**2).sum() * (y**2).sum())) / 8
    assert abs(float(np.mean(products)) - inner) < 4 * math.sqrt(variance / draws)


# ---- settings ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"private_lr": 0.0}, r"private_lr must be positive, got 0\.0"),
        ({"item_lr": 0.0}, r"item_lr must be positive, got 0\.0"),
        ({"common_weight": 0.0}, r"common_weight must be positive, got 0\.0"),
        ({"clusters": 0}, "clusters must be at least 1, got 0"),
        ({"sketch": 0}, "sketch must be at least 1, got 0"),
        ({"reg": -1.0}, r"reg must not be negative, got -1\.0"),
        ({"own_weight": -1.0}, r"own_weight must not be negative, got -1\.0"),
    ],
)
def test_bad_settings(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(PerFedRecConfig(), **changes)  # type: ignore[arg-type]


def test_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="perfedrec needs model=mf"):
        PerFedRec(PerFedRecConfig(), LinearScoring())  # type: ignore[arg-type]
