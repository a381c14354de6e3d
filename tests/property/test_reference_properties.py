"""What holds for every reference recommender, and for any matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from server_app.references import METHODS
from server_app.references.base import LabelledPairs
from server_app.references.bpr import draw_triples

CHEAP: dict[str, dict[str, Any]] = {
    "ials": {"factors": 2, "iterations": 2, "implementation": "own"},
    "bpr": {"factors": 2, "epochs": 1, "implementation": "own"},
    "neumf": {"factors": 2, "mlp_layers": 1, "epochs": 1, "num_negatives": 1},
}


@st.composite
def matrices(draw: st.DrawFn) -> csr_array:
    """Up to 6 users and 8 items; every user has an item, some pairs are repeated."""
    users, items = draw(st.integers(1, 6)), draw(st.integers(2, 8))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    counts = rng.integers(1, 3, (users, items)) * (rng.random((users, items)) < 0.4)
    counts[np.arange(users), rng.integers(items, size=users)] = 1
    return csr_array(counts.astype(float))


def drawn(train_UI: csr_array) -> Any:
    def draw(seed: int, epoch: int, num_negatives: int) -> LabelledPairs:
        users, items = np.divmod(np.arange(np.prod(train_UI.shape)), train_UI.shape[1])
        return LabelledPairs(users, items, (train_UI.toarray() > 0).astype(np.float32).reshape(-1))

    return draw


@pytest.mark.parametrize("name", METHODS)
@given(train_UI=matrices(), seed=st.integers(0, 100))
@settings(max_examples=15)
def test_contract(name: str, train_UI: csr_array, seed: int) -> None:
    """Finite scores for any users in any order, the same again, and the matrix untouched."""
    method = METHODS[name]
    before = train_UI.copy()
    reference = method(method.Config(**CHEAP.get(name, {})), drawn(train_UI))
    users = np.arange(train_UI.shape[0])
    scorer = reference.fit(train_UI, seed)
    scores = scorer(users)
    assert scores.shape == train_UI.shape
    assert scores.isfinite().all()
    # Products of other shapes may round otherwise: a few units in the last place of float32.
    backwards = scorer(users[::-1].copy()).flip(0)
    assert torch.allclose(backwards, scores, rtol=1e-5, atol=1e-6)
    assert torch.equal(reference.fit(train_UI, seed)(users), scores)
    assert all(np.array_equal(getattr(train_UI, a), getattr(before, a)) for a in PARTS)


PARTS = ("data", "indices", "indptr")


@given(train_UI=matrices(), seed=st.integers(0, 1000))
def test_triples_are_the_pairs_with_items_of_nobody(train_UI: csr_array, seed: int) -> None:
    dense = train_UI.toarray() > 0
    triples = draw_triples(train_UI, np.random.default_rng(seed))
    users, items = np.nonzero(dense & ~dense.all(axis=1)[:, None])
    assert sorted(map(tuple, triples[:, :2].tolist())) == list(
        zip(users.tolist(), items.tolist(), strict=True)
    )
    assert not dense[triples[:, 0], triples[:, 2]].any()
