"""Both layouts of a block against each other and against hand-made numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models import mf_block
from models.losses import Loss
from models.mf import ITEM, USER, MatrixFactorisation
from models.mf_block import sam_block
from models.mf_layouts import Layout, dense_cells, layout_of, sparse_rows
from models.reduce_samples import FlatSamples, flatten_samples
from models.sam import Radii, loop_gradients
from models.types import Samples

Build = Callable[[FlatSamples, torch.Tensor], Layout]
LAYOUTS: dict[str, Build] = {"dense": dense_cells, "sparse": sparse_rows}
RADII = [Radii(), Radii(0.3, 0.0), Radii(0.0, 0.2), Radii(0.3, 0.2)]
# Sums of at most 200 float terms in another order: sqrt(200) · 6e-8 = 8e-7 of the norm in
# float32 and 2e-15 in float64; a perturbed pass may multiply that by its curvature.
PRECISIONS = [(torch.float32, 1e-5), (torch.float64, 1e-10)]


@pytest.fixture(params=LAYOUTS)
def build(request: pytest.FixtureRequest) -> Build:
    return LAYOUTS[str(request.param)]


def ragged(lengths: list[int], num_items: int, seed: int = 0) -> list[Samples]:
    rng = np.random.default_rng(seed)
    return [
        Samples(rng.integers(0, num_items, n), (rng.random(n) < 0.3).astype(np.float32))
        for n in lengths
    ]


def tensors(num_items: int, num_users: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(num_items, 3)), rng.normal(size=(num_users, 3))
    items, users = (torch.from_numpy(draw).to(dtype) for draw in draws)
    return items, users


def test_algebra_by_hand(build: Build) -> None:
    """D = 1. User 0 has item 1 twice and item 0; user 1 has nothing; user 2 has item 1."""
    lists = [[1, 0, 1], [], [1]]
    users = [Samples(np.array(i, dtype=np.int64), np.zeros(len(i), np.float32)) for i in lists]
    layout = build(flatten_samples(users, 3, 128), torch.tensor([[2.0], [3.0], [5.0]]))
    users_UD = torch.tensor([[1.0], [7.0], [10.0]])
    assert layout.scores(users_UD).tolist() == [3, 2, 3, 30]
    spread = layout.spread(torch.tensor([1.0, 3.0, 3.0, -2.0]))
    norms_U1, errors_S = layout.by_pair(spread)
    assert norms_U1.flatten().tolist() == [5, 0, 2]
    assert errors_S.tolist() == [4, 3, 4, -2]
    assert layout.user_gradient(spread).flatten().tolist() == [18, 0, -6]
    items_ID = layout.item_gradient(spread, users_UD).to_dense()
    assert items_ID.flatten().tolist() == [3, 4 - 20, 0]


@pytest.mark.parametrize("radii", RADII)
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS, ids=["float32", "float64"])
@pytest.mark.parametrize("num_items", [11, 3000], ids=["repeats", "large"])
def test_equals_the_loop(
    build: Build, num_items: int, dtype: torch.dtype, tolerance: float, radii: Radii
) -> None:
    items, users = tensors(num_items, 5, dtype)
    samples_U = ragged([60, 1, 0, 130, 5], num_items)
    got = sam_block(items, users, samples_U, Loss(16), radii, build)
    loop = loop_gradients(
        MatrixFactorisation(factors=3), {ITEM: items}, {USER: users}, samples_U, Loss(16), radii
    )
    for ours, theirs in zip(got, (loop.shared[ITEM], loop.private[USER], loop.losses), strict=True):
        torch.testing.assert_close(
            ours.to_dense(), theirs, rtol=tolerance, atol=tolerance, equal_nan=True
        )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=6),
    st.integers(1, 60),
    st.sampled_from(RADII),
    st.integers(0, 99),
)
def test_layouts_agree(lengths: list[int], num_items: int, radii: Radii, seed: int) -> None:
    items, users = tensors(num_items, len(lengths), torch.float64)
    samples_U = ragged(lengths, num_items, seed)
    dense, sparse = (
        sam_block(items, users, samples_U, Loss(7), radii, b) for b in LAYOUTS.values()
    )
    for one, other in zip(dense, sparse, strict=True):
        torch.testing.assert_close(
            one.to_dense(), other.to_dense(), rtol=1e-10, atol=1e-10, equal_nan=True
        )


def test_layout_is_chosen_by_size() -> None:
    samples_U = ragged([50, 50], 10)
    flat = flatten_samples(samples_U, 10, 128)
    assert isinstance(layout_of(flat, torch.zeros(10, 1)), type(dense_cells(flat, torch.zeros(1))))
    large = layout_of(flat, torch.zeros(5000, 1))
    assert isinstance(large, type(sparse_rows(flat, torch.zeros(1))))


def test_a_large_catalogue_has_a_sparse_gradient() -> None:
    items, users = tensors(3000, 2, torch.float64)
    shared, _, _ = sam_block(items, users, ragged([50, 50], 3000), Loss(128), Radii())
    assert shared.is_sparse


@pytest.mark.parametrize("num_items", [20, 3000], ids=["dense", "sparse"])
@pytest.mark.parametrize("limit", [1, 30, 1000])
def test_parts_add_up(monkeypatch: pytest.MonkeyPatch, num_items: int, limit: int) -> None:
    """A block worked on in parts, of which some hold one user larger than the limit."""
    items, users = tensors(num_items, 5, torch.float64)
    samples_U = ragged([60, 1, 13, 5, 20], num_items)
    whole = sam_block(items, users, samples_U, Loss(16), Radii(0.3, 0.2))
    monkeypatch.setattr(mf_block, "MAX_SAMPLES", limit)
    parts = sam_block(items, users, samples_U, Loss(16), Radii(0.3, 0.2))
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one.to_dense(), other.to_dense(), rtol=1e-12, atol=1e-12)
