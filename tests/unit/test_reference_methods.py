"""Reference recommenders on matrices small enough to work out by hand."""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from conf.compose import compose
from models.losses import sliced_bce
from models.neumf import NeuMF
from models.rng import Role, derive_rng
from server_app.references import METHODS
from server_app.references.base import LabelledPairs, MissingExtraError, UnavailableError
from server_app.references.bpr import BPR, BPRConfig, draw_triples, loss
from server_app.references.ease import EASE, EASEConfig
from server_app.references.ials import IALS, IALSConfig, initial_vectors, solved
from server_app.references.item_knn import ItemKNN, ItemKNNConfig
from server_app.references.neumf import CentralNeuMF, NeuMFConfig, batch_loss, batches, initial
from server_app.references.popularity import NoSettings, Popularity

SMALL = csr_array(np.array([[1.0, 1.0], [1.0, 0.0]]))
ALL = np.arange(2)


def no_draw(seed: int, epoch: int, num_negatives: int) -> LabelledPairs:
    raise AssertionError("not for this method")


def test_popularity_counts_repeats() -> None:
    train_UI = csr_array(np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 0.0]]))
    scores = Popularity(NoSettings(), no_draw).fit(train_UI, 0)(ALL)
    assert scores.tolist() == [[2.0, 2.0, 0.0]] * 2


def test_cosine_with_shrinkage() -> None:
    """Items 0, 1, 2 have users {a, b, c, d}, {a}, {a, b, c, d}: √(4·1) = 2 and √(4·4) = 4."""
    once_UI = csr_array(np.array([[1.0, 1.0, 1.0], *[[1.0, 0.0, 1.0]] * 3]))
    nearest = ItemKNN(ItemKNNConfig(2, 0.5), no_draw).similarities(once_UI).toarray()
    expected = [[0, 1 / 2.5, 4 / 4.5], [1 / 2.5, 0, 1 / 2.5], [4 / 4.5, 1 / 2.5, 0]]
    assert nearest == pytest.approx(np.array(expected), abs=1e-15)


def test_each_item_keeps_its_own_nearest_and_ties_go_to_the_lower_index() -> None:
    once_UI = csr_array(np.array([[1.0, 1.0, 1.0], *[[1.0, 0.0, 1.0]] * 3]))
    nearest = ItemKNN(ItemKNNConfig(1, 0.0), no_draw).similarities(once_UI).toarray()
    # Column i holds item i's one neighbour: 2 for 0, 0 for 1 (items 0 and 2 are alike), 0 for 2.
    assert nearest.tolist() == [[0.0, 0.5, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    scores = ItemKNN(ItemKNNConfig(1, 0.0), no_draw).fit(once_UI, 0)(np.array([1]))
    assert scores.tolist() == [[1.0, 0.5, 1.0]]


def test_an_item_without_users_is_like_no_other() -> None:
    once_UI = csr_array(np.array([[1.0, 1.0, 0.0]]))
    nearest = ItemKNN(ItemKNNConfig(2, 0.0), no_draw).similarities(once_UI).toarray()
    assert nearest.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]


def test_ease_of_two_items() -> None:
    """XᵀX + I = [[3, 1], [1, 2]], whose inverse is [[2, −1], [−1, 3]] / 5.

    So B_01 = −P_01 / P_11 = 1/3 and B_10 = −P_10 / P_00 = 1/2.
    """
    method = EASE(EASEConfig(1.0), no_draw)
    assert method.weights(SMALL) == pytest.approx(np.array([[0, 1 / 3], [1 / 2, 0]]), abs=1e-15)
    scores = method.fit(SMALL, 0)(ALL)
    assert scores.numpy() == pytest.approx(np.array([[1 / 2, 1 / 3], [0, 1 / 3]]), abs=1e-15)


def test_ease_over_several_slabs_is_the_plain_formula() -> None:
    """1100 items are three slabs; the condition number is below 60 · 1100, so 1e-9 is ample."""
    rng = np.random.default_rng(0)
    once = (rng.random((60, 1100)) < 0.05).astype(float)
    inverse = np.linalg.inv(once.T @ once + np.eye(1100))
    expected = np.eye(1100) - inverse / np.diag(inverse)
    np.fill_diagonal(expected, 0)
    found = EASE(EASEConfig(1.0), no_draw).weights(csr_array(once))
    assert np.abs(found - expected).max() < 1e-9


def test_ease_refuses_what_memory_cannot_hold() -> None:
    """1.2 · 8 · 1000² bytes are 0.0089 GiB."""
    EASE(EASEConfig(max_gib=0.009), no_draw).check_room(1000)
    with pytest.raises(UnavailableError, match="1000 × 1000 items"):
        EASE(EASEConfig(max_gib=0.008), no_draw).check_room(1000)
    with pytest.raises(UnavailableError, match="leave it out"):
        EASE(EASEConfig(), no_draw).check_room(100_000_000)


def test_one_solve_of_als() -> None:
    """D = 1, q = (1, 2), λ = 1, α = 3: base 1 + 4 + 1 = 6.

    User 0 has both: (6 + 2·5) p = 3·3, p = 9/16. User 1 has item 0: (6 + 2·1) p = 3·1, p = 3/8.
    """
    config = IALSConfig(factors=1, l2=1.0, alpha=3.0)
    found = solved(SMALL, np.array([[1.0], [2.0]]), config)
    assert found == pytest.approx(np.array([[9 / 16], [3 / 8]]), abs=1e-15)


def test_als_lowers_its_loss() -> None:
    """Each half step is the exact minimum over its vectors, whatever the others are."""
    once_UI = csr_array((np.random.default_rng(1).random((12, 9)) < 0.3).astype(float))
    config = IALSConfig(factors=3, l2=0.1, alpha=4.0, implementation="own")
    users, items = initial_vectors(once_UI.shape, 3, 0)
    losses = [als_loss(once_UI.toarray(), users, items, config)]
    for _ in range(4):
        users = solved(once_UI, items, config)
        losses.append(als_loss(once_UI.toarray(), users, items, config))
        items = solved(once_UI.T.tocsr(), users, config)
        losses.append(als_loss(once_UI.toarray(), users, items, config))
    assert all(after < before for before, after in pairwise(losses))


def als_loss(once: np.ndarray, users: np.ndarray, items: np.ndarray, config: IALSConfig) -> float:
    weights = np.where(once > 0, config.alpha, 1.0)
    errors = float((weights * (once - users @ items.T) ** 2).sum())
    return errors + config.l2 * float((users**2).sum() + (items**2).sum())


def test_the_librarys_als_is_ours() -> None:
    """Both solve the same systems exactly in float64 from the same vectors.

    The library keeps weights in float32, which holds 3.0 exactly. Systems have a condition
    number below 1e4 and ten solves follow each other, hence 1e-9.
    """
    pytest.importorskip("implicit")
    once_UI = csr_array((np.random.default_rng(2).random((30, 20)) < 0.2).astype(float))
    scores = [
        IALS(IALSConfig(4, 0.1, 3.0, 5, implementation), no_draw).fit(once_UI, 7)(np.arange(30))
        for implementation in ("own", "implicit")
    ]
    assert torch.dist(*scores) < 1e-9 * scores[0].norm()


def test_the_librarys_bpr_is_reproducible() -> None:
    pytest.importorskip("implicit")
    config = BPRConfig(factors=4, epochs=3)
    first, second, other = (BPR(config, no_draw).fit(blocks(), s)(np.arange(8)) for s in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_bpr_loss_of_one_triple() -> None:
    """p = 1, q_i = 2, q_j = 0.5: ln(1 + e^−1.5) + ½ · 0.1 · (1 + 4 + 0.25)."""
    rows = [torch.tensor([[value]], dtype=torch.float64) for value in (1.0, 2.0, 0.5)]
    expected = np.log1p(np.exp(-1.5)) + 0.05 * 5.25
    assert float(loss(*rows, 0.1)) == pytest.approx(expected, abs=1e-12)


def test_bpr_tells_two_groups_apart() -> None:
    config = BPRConfig(factors=4, learning_rate=0.05, l2=0.0, epochs=60, implementation="own")
    scores = BPR(config, no_draw).fit(blocks(), 0)(np.arange(8))
    own, other = scores[:4, :5], scores[:4, 5:]
    assert own.min() > other.max()


def blocks() -> csr_array:
    """Users 0 to 3 have items 0 to 4, users 4 to 7 have items 5 to 9."""
    return csr_array(np.kron(np.eye(2), np.ones((4, 5))))


def test_users_with_every_item_have_no_triple() -> None:
    train_UI = csr_array(np.array([[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]]))
    triples = draw_triples(train_UI, np.random.default_rng(0))
    assert triples[:, :2].tolist() == [[1, 1]]
    assert triples[0, 2] in (0, 2)


def test_a_batch_of_users_has_the_mean_of_each_users_loss() -> None:
    """The model's logits for one user, user by user, in float64."""
    model = NeuMF(2, 2)
    shared, private = (
        {name: tensor.detach().double() for name, tensor in part.items()}
        for part in initial(model, (3, 5), 0)
    )
    users, items = torch.tensor([2, 0, 2, 1]), torch.tensor([4, 1, 0, 1])
    labels = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    single = [
        sliced_bce(model.logits(shared, {n: t[u] for n, t in private.items()}, i[None]), y[None], 1)
        for u, i, y in zip(users, items, labels, strict=True)
    ]
    found = batch_loss(model, shared, private, (users, items, labels))
    assert float(found) == pytest.approx(float(torch.stack(single).mean()), abs=1e-12)


def test_batches_hold_every_sample_once() -> None:
    pairs = LabelledPairs(np.arange(10), 2 * np.arange(10), np.ones(10, dtype=np.float32))
    found = list(batches(pairs, 4, np.random.default_rng(0)))
    assert [len(users) for users, _, _ in found] == [4, 4, 2]
    assert sorted(torch.cat([users for users, _, _ in found]).tolist()) == list(range(10))
    assert all((items == 2 * users).all() for users, items, _ in found)


def test_neumf_starts_where_a_run_starts_and_learns_two_groups() -> None:
    model = NeuMF(4, 1)
    shared, private = initial(model, (8, 10), 3)
    alone = model.init_private(10, derive_rng(3, Role.INIT_PRIVATE, 5))
    assert all(torch.equal(private[name][5], tensor) for name, tensor in alone.items())
    start = model.init_shared(10, derive_rng(3, Role.INIT_SHARED))
    assert all(torch.equal(shared[name], tensor) for name, tensor in start.items())

    def draw(seed: int, epoch: int, num_negatives: int) -> LabelledPairs:
        users, items = np.divmod(np.arange(80), 10)
        return LabelledPairs(users, items, blocks().toarray().reshape(-1).astype(np.float32))

    config = NeuMFConfig(4, 1, learning_rate=0.02, batch=20, epochs=80)
    scores = CentralNeuMF(config, draw).fit(blocks(), 0)(np.arange(8))
    assert scores[:4, :5].min() > scores[:4, 5:].max()


def test_central_neumf_has_the_federated_widths_and_negatives() -> None:
    cfg = compose(["strategy=fedncf"])
    config = NeuMFConfig()
    assert NeuMF(config.factors, config.mlp_layers) == cfg.model
    assert config.num_negatives == cfg.strategy.num_negatives


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        (ItemKNNConfig, {"neighbours": 0}),
        (ItemKNNConfig, {"shrinkage": -1.0}),
        (EASEConfig, {"l2": 0.0}),
        (IALSConfig, {"alpha": 0.5}),
        (IALSConfig, {"l2": 0.0}),
        (BPRConfig, {"epochs": 0}),
        (BPRConfig, {"learning_rate": 0.0}),
        (NeuMFConfig, {"batch": 0}),
        (NeuMFConfig, {"learning_rate": 0.0}),
    ],
)
def test_impossible_settings_are_refused(config: type, wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        config(**wrong)


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if m.grid])
def test_the_defaults_are_in_the_grid(name: str) -> None:
    assert METHODS[name].Config() in METHODS[name].grid


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "implicit", None)
    with pytest.raises(MissingExtraError, match=r"pip install fedrecgel\[references\]"):
        IALS(IALSConfig(), no_draw).check_installed()
    IALS(IALSConfig(implementation="own"), no_draw).check_installed()
