"""Matrix factorisation: scores, and block gradients against the one-user reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from models.losses import Loss
from models.mf import ITEM, USER, MatrixFactorisation
from models.sam import BlockGradients, Radii, loop_gradients
from models.types import Samples, Tensors

NUM_ITEMS = 17
MODEL = MatrixFactorisation(factors=5, init_std=0.5)
RADII = [Radii(), Radii(0.3, 0.0), Radii(0.0, 0.2), Radii(0.3, 0.2)]

# Sums of at most 60 float terms in another order: about sqrt(60) · 6e-8 = 5e-7 of the norm in
# float32 and 1e-15 in float64, and a perturbed pass may multiply that by its curvature.
PRECISIONS = [(torch.float32, 1e-5), (torch.float64, 1e-10)]


def samples(rng: np.random.Generator, length: int) -> Samples:
    labels_S = (rng.random(length) < 0.3).astype(np.float32)
    return Samples(rng.integers(0, NUM_ITEMS, length), labels_S)


def block(dtype: torch.dtype, lengths: tuple[int, ...]) -> tuple[Tensors, Tensors, list[Samples]]:
    rng = np.random.default_rng(0)
    shared = MODEL.init_shared(NUM_ITEMS, rng)
    users = torch.stack([MODEL.init_private(NUM_ITEMS, rng)[USER] for _ in lengths])
    ragged = [samples(rng, length) for length in lengths]
    return {ITEM: shared[ITEM].to(dtype)}, {USER: users.to(dtype)}, ragged


def assert_equal_gradients(got: BlockGradients, loop: BlockGradients, tolerance: float) -> None:
    for ours, theirs in (
        (got.shared[ITEM], loop.shared[ITEM]),
        (got.private[USER], loop.private[USER]),
    ):
        assert float((ours - theirs).norm()) <= tolerance * float(theirs.norm())
    torch.testing.assert_close(
        got.losses, loop.losses, rtol=tolerance, atol=tolerance, equal_nan=True
    )


@pytest.mark.parametrize("loss_slice", [7, 128])
@pytest.mark.parametrize("radii", RADII)
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS, ids=["float32", "float64"])
def test_block_gradients_equal_the_loop(
    dtype: torch.dtype, tolerance: float, radii: Radii, loss_slice: int
) -> None:
    """More samples than items: items repeat within a user, with both labels."""
    shared, users, ragged = block(dtype, (60, 1, 13, 5))
    arguments = (shared, users, ragged, Loss(loss_slice), radii)
    loop = loop_gradients(MODEL, *arguments)
    assert_equal_gradients(MODEL.block_gradients(*arguments), loop, tolerance)


@pytest.mark.parametrize("radii", RADII)
def test_users_and_items_at_zero(radii: Radii) -> None:
    """At a zero norm nothing is perturbed; no division by zero."""
    shared, users, ragged = block(torch.float64, (9, 9, 9))
    users[USER][1] = 0
    arguments = (shared, users, ragged, Loss(4), radii)
    got = MODEL.block_gradients(*arguments)
    assert_equal_gradients(got, loop_gradients(MODEL, *arguments), 1e-10)
    nothing = ({ITEM: torch.zeros_like(shared[ITEM])}, {USER: torch.zeros_like(users[USER])})
    saddle = MODEL.block_gradients(*nothing, ragged, Loss(4), radii)
    assert not saddle.shared[ITEM].any()
    assert not saddle.private[USER].any()


def test_sam_by_hand() -> None:
    """One item q = 1, one factor p = 2, one positive sample, both radii 0.5.

    The score is 2 and its error e = σ(2) - 1 < 0. Item: the gradient e·p points down, so
    q' = 1 - 0.5, the score 1 and h_q = (σ(1) - 1)·2. User: e·q points down, so p' = 1.5, the
    score 1.5 and h_p = σ(1.5) - 1. Losses are log(1 + exp(-score)).
    """
    model = MatrixFactorisation(factors=1)
    shared, users = {ITEM: torch.tensor([[1.0]]).double()}, {USER: torch.tensor([[2.0]]).double()}
    one = [Samples(np.array([0]), np.array([1], dtype=np.float32))]
    got = model.block_gradients(shared, users, one, Loss(128), Radii(0.5, 0.5))

    def sigma(score: float) -> float:
        return 1 / (1 + math.exp(-score))

    # The 1e-12 beside the norm moves a perturbation by about 1e-11 of itself.
    assert got.shared[ITEM].item() == pytest.approx((sigma(1) - 1) * 2, rel=1e-10)
    assert got.private[USER].item() == pytest.approx(sigma(1.5) - 1, rel=1e-10)
    losses = [math.log1p(math.exp(-score)) for score in (2, 1, 1.5)]
    assert got.losses[0].tolist() == pytest.approx(losses, rel=1e-10)


def test_far_scores_keep_their_gradient() -> None:
    """A score of 60 has σ = 1 in float32, yet a positive there still has error -e^-60."""
    shared, users = {ITEM: torch.tensor([[60.0]])}, {USER: torch.tensor([[1.0]])}
    one = [Samples(np.array([0]), np.array([1], dtype=np.float32))]
    got = MatrixFactorisation(factors=1).block_gradients(shared, users, one, Loss(128), Radii())
    assert got.shared[ITEM].item() == pytest.approx(-math.exp(-60), rel=1e-5)


def test_scores_agree() -> None:
    shared, users, _ = block(torch.float64, (1, 1, 1))
    all_UI = MODEL.scores_all(shared, users)
    items_UC = np.array([[0, 3], [16, 16], [5, 1]])
    expected_UC = all_UI.gather(1, torch.from_numpy(items_UC))
    torch.testing.assert_close(MODEL.score_candidates(shared, users, items_UC), expected_UC)
    torch.testing.assert_close(MODEL.scores(shared, users, np.array([3, 8])), all_UI[:, [3, 8]])
    one = MODEL.logits(shared, {USER: users[USER][1]}, torch.tensor([16, 0]))
    torch.testing.assert_close(one, all_UI[1, [16, 0]])


def test_initial_values() -> None:
    model = MatrixFactorisation(factors=32, init_std=0.2)
    first = model.init_shared(500, np.random.default_rng(1))[ITEM]
    again = model.init_shared(500, np.random.default_rng(1))[ITEM]
    assert torch.equal(first, again)
    assert (first.shape, first.dtype) == ((500, 32), torch.float32)
    # 16000 normal draws: the sample deviation errs by 0.2/sqrt(32000) = 0.0011; four of them.
    assert float(first.std()) == pytest.approx(0.2, abs=0.0045)
    assert model.init_private(NUM_ITEMS, np.random.default_rng(1))[USER].shape == (32,)


@pytest.mark.parametrize("init_std", [0.0, -1.0, math.inf, math.nan])
def test_init_std_is_checked(init_std: float) -> None:
    with pytest.raises(ValueError, match="init_std must be positive and finite"):
        MatrixFactorisation(init_std=init_std)


def test_factors_are_checked() -> None:
    with pytest.raises(ValueError, match="factors must be at least 1, got 0"):
        MatrixFactorisation(factors=0)
