"""PFedRec: a step by hand, an independent torch implementation, scoring, settings."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from models.linear import BIAS, ITEM, WEIGHT, LinearScoring
from models.mf import MatrixFactorisation
from models.rng import Role, derive_rng
from models.types import ClientResult, History, Samples, Tensors
from strategies.own_tables import HAS_OWN, OWN
from strategies.pfedrec import PFedRec, PFedRecConfig

NUM_ITEMS = 19
MODEL = LinearScoring(factors=4, init_std=0.5)
# Items then move at 0.2 · 19 · 0.5 = 1.9, which amplifies no rounding in a few local steps.
BASE = PFedRecConfig(batch_size=16, private_lr=0.2, item_lr_factor=0.5)
# float64 rounding of some hundred terms: 20 · 1e-16, far below.
EXACT = 1e-10
NO_HISTORY = History(np.empty(0, dtype=np.int64), np.zeros(2, dtype=np.int64))


def strategy(**changes: object) -> PFedRec:
    return PFedRec(dataclasses.replace(BASE, **changes), MODEL)


def samples(user: int, positives: int) -> Samples:
    rng = derive_rng(0, Role.TRAIN, user, positives)
    labels_S = np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), positives)
    return Samples(rng.integers(0, NUM_ITEMS, len(labels_S)), labels_S)


def start(pfedrec: PFedRec, user: int = 0) -> tuple[Tensors, Tensors]:
    shared = pfedrec.init_shared(NUM_ITEMS, derive_rng(0, Role.INIT_SHARED))
    private = pfedrec.init_private(NUM_ITEMS, derive_rng(0, Role.INIT_PRIVATE, user))
    return tuple({n: t.double() for n, t in part.items()} for part in (shared, private))


def train(pfedrec: PFedRec, *epochs: Samples) -> ClientResult:
    shared, private = start(pfedrec)
    return pfedrec.client_update(shared, private, epochs, np.random.default_rng(0))


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=EXACT, atol=EXACT)


def test_one_step_by_hand() -> None:
    """One positive sample of item 1 of two, D = 1, q = 2, w = 1, b = -2; rates 0.5 and 0.5·2·3.

    Scorer: the score is 0, e = σ(0) - 1 = -1/2, so w = 1 + 0.5·½·2 = 1.5 and b = -2 + 0.25.
    Item, at the new scorer: the score is 3 - 1.75 = 1.25 and e' = σ(1.25) - 1, so q moves by
    -3·e'·1.5. With one simultaneous step it would move by 3·½·1. The loss is log 2.
    """
    config = PFedRecConfig(private_lr=0.5, item_lr_factor=3.0)
    pfedrec = PFedRec(config, LinearScoring(factors=1))
    shared = {ITEM: torch.tensor([[7.0], [2.0]]).double()}
    private = {WEIGHT: torch.ones(1).double(), BIAS: torch.tensor(-2.0).double()}
    private |= {OWN: torch.zeros(2, 1).double(), HAS_OWN: torch.zeros(()).double()}
    one = Samples(np.array([1]), np.array([1], dtype=np.float32))
    result = pfedrec.client_update(shared, private, [one], np.random.default_rng(0))
    moved = 3 * 1.5 * (1 - 1 / (1 + math.exp(-1.25)))
    assert result.private[WEIGHT].item() == pytest.approx(1.5)
    assert result.private[BIAS].item() == pytest.approx(-1.75)
    assert result.update.tensors[ITEM].flatten().tolist() == pytest.approx([0, moved])
    assert result.private[OWN].flatten().tolist() == pytest.approx([7, 2 + moved])
    assert result.private[HAS_OWN].item() == 1
    assert result.update.weight == 1
    assert result.metrics == pytest.approx({"loss": math.log(2), "num_samples": 1})


@pytest.mark.parametrize("batch_size", [4, 16, 1000])
def test_local_training_equals_torch(batch_size: int) -> None:
    """Two epochs of 35 samples with a short last batch, by torch's layers and optimisers."""
    pfedrec = strategy(batch_size=batch_size)
    shared, private = start(pfedrec)
    table = torch.nn.Embedding.from_pretrained(shared[ITEM].clone(), freeze=False)
    layer = torch.nn.Linear(4, 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(private[WEIGHT][None])
        layer.bias.copy_(private[BIAS][None])
    optimisers = (
        torch.optim.SGD(layer.parameters(), lr=0.2),
        torch.optim.SGD(table.parameters(), lr=0.2 * NUM_ITEMS * 0.5),
    )
    epochs = [samples(0, 7), samples(1, 7)]
    for epoch in epochs:
        items, labels = torch.from_numpy(epoch.items_S), torch.from_numpy(epoch.labels_S).double()
        for i, y in zip(items.split(batch_size), labels.split(batch_size), strict=True):
            for optimiser in optimisers:
                optimiser.zero_grad()
                loss = functional.binary_cross_entropy(layer(table(i)).sigmoid()[:, 0], y)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
    result = train(pfedrec, *epochs)
    close(result.private[WEIGHT], layer.weight.detach()[0])
    close(result.private[BIAS], layer.bias.detach()[0])
    close(result.private[OWN], table.weight.detach())
    close(result.update.tensors[ITEM], table.weight.detach() - shared[ITEM])


def test_item_rate_grows_with_the_catalogue() -> None:
    """The public code's rate on MovieLens-100K: 0.1 · 1682 · 80."""
    assert PFedRecConfig().rates(1682).items == pytest.approx(13456)
    assert PFedRecConfig().rates(1682).scorer == 0.1


def test_every_user_starts_alike() -> None:
    pfedrec = strategy()
    first, second = (pfedrec.start_private(NUM_ITEMS, seed=3, user=u) for u in (0, 5))
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert not torch.equal(first[WEIGHT], pfedrec.start_private(NUM_ITEMS, 4, 0)[WEIGHT])


def test_trained_users_score_with_their_table_and_others_with_the_shared_one() -> None:
    pfedrec = strategy()
    shared, fresh = start(pfedrec)
    trained = train(pfedrec, samples(0, 7)).private
    block = {n: torch.stack([fresh[n], trained[n]]) for n in fresh}
    scores_UI = pfedrec.scores_all(shared, block, NO_HISTORY)
    close(scores_UI[0], shared[ITEM] @ fresh[WEIGHT] + fresh[BIAS])
    close(scores_UI[1], trained[OWN] @ trained[WEIGHT] + trained[BIAS])
    items_UC = np.array([[3, 0, 18], [18, 4, 4]])
    found_UC = pfedrec.score_candidates(shared, block, items_UC, NO_HISTORY)
    close(found_UC, scores_UI.gather(1, torch.from_numpy(items_UC)))


def test_scoring_with_the_shared_table_needs_no_table_of_the_user() -> None:
    """The same scorer and upload; the private state is the scorer alone."""
    pfedrec = strategy(score_with="shared")
    shared, _ = start(pfedrec)
    result, own = train(pfedrec, samples(0, 7)), train(strategy(), samples(0, 7))
    assert result.private.keys() == {WEIGHT, BIAS}
    assert all(torch.equal(result.private[n], own.private[n]) for n in result.private)
    assert torch.equal(result.update.tensors[ITEM], own.update.tensors[ITEM])
    block = {n: t[None] for n, t in result.private.items()}
    scores_UI = pfedrec.scores_all(shared, block, NO_HISTORY)
    close(scores_UI[0], shared[ITEM] @ result.private[WEIGHT] + result.private[BIAS])


def test_a_latecomer_of_score_with_shared_meets_the_shared_table_only() -> None:
    """Two batches of cold start: each a step of the scorer on the shared table as it is."""
    pfedrec = strategy(score_with="shared", batch_size=5)
    shared, private = start(pfedrec)
    epoch, at = samples(0, 2), private
    for part in (slice(0, 5), slice(5, 10)):
        batch = Samples(epoch.items_S[part], epoch.labels_S[part])
        at = pfedrec.client_update(shared, at, [batch], np.random.default_rng(0)).private
    adapted = pfedrec.adapt(shared, private, [epoch], np.random.default_rng(0))
    assert all(torch.equal(adapted[n], at[n]) for n in at)


def test_a_latecomer_of_score_with_own_makes_a_local_round() -> None:
    pfedrec = strategy(batch_size=5)
    shared, private = start(pfedrec)
    rng = np.random.default_rng(0)
    adapted = pfedrec.adapt(shared, private, [samples(0, 2)], rng)
    trained = pfedrec.client_update(shared, private, [samples(0, 2)], rng).private
    assert all(torch.equal(adapted[n], trained[n]) for n in trained)


def test_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="pfedrec needs model=linear"):
        PFedRec(BASE, MatrixFactorisation())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"private_lr": 0.0}, r"private_lr must be positive, got 0\.0"),
        ({"item_lr_factor": -1.0}, r"item_lr_factor must be positive, got -1\.0"),
        ({"score_with": "both"}, "score_with must be one of own, shared, got 'both'"),
        ({"local_epochs": 0}, "local_epochs must be at least 1, got 0"),
    ],
)
def test_bad_settings(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        strategy(**changes)
