"""Training losses by hand, and their derivatives against automatic differentiation."""

from __future__ import annotations

from math import log
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from models.losses import RANKINGS, Loss, LossName, samples_per_positive
from models.mf_block import labelled
from models.pairs import distinct_pairs
from models.ranked import ranked
from models.reduce_samples import flatten_samples
from models.types import FloatArray, Samples

# Values are of order one: some roundings of 1.1e-16.
RTOL, ATOL = 1e-14, 1e-15
LOG2, LOG3 = log(2), log(3)


def labels_of(num_positives: int, num_negatives: int) -> FloatArray:
    return np.tile(np.array([1] + [0] * num_negatives, dtype=np.float32), num_positives)


def of_user(loss: Loss, scores: list[float], num_negatives: int) -> tuple[Tensor, Tensor]:
    """Loss of one user and its derivative by the scores, by differentiation."""
    scores_S = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    labels = labels_of(len(scores) // (1 + num_negatives), num_negatives)
    value = loss.of_user(scores_S, torch.from_numpy(labels).double())
    return value.detach(), torch.autograd.grad(value, scores_S)[0]


def same(got: Tensor, *expected: float) -> None:
    wanted = torch.tensor(expected, dtype=torch.float64).view(got.shape)
    torch.testing.assert_close(got, wanted, rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize("name", RANKINGS)
def test_two_samples_by_hand(name: LossName) -> None:
    """A positive scored ln 3 above its negative: σ(ln 3) = 3/4 for both losses.

    One slice of two samples: the term weighs 1/2 + 1/2. The loss is -ln 3/4 and its derivative
    by the positive σ(ln 3) - 1 = -1/4.
    """
    value, gradient = of_user(Loss(128, name), [LOG3 + 0.5, 0.5], 1)
    same(value, log(4 / 3))
    same(gradient, -1 / 4, 1 / 4)


def test_bpr_of_two_negatives_by_hand() -> None:
    """The positive is scored ln 3 above one negative, and like the other one.

    The mean of -ln 3/4 and -ln 1/2 is ln(8/3)/2; derivatives are (1/4)/2 and (1/2)/2.
    """
    value, gradient = of_user(Loss(128, "bpr"), [LOG3, 0.0, LOG3], 2)
    same(value, log(8 / 3) / 2)
    same(gradient, -3 / 8, 1 / 8, 1 / 4)


def test_softmax_of_two_negatives_by_hand() -> None:
    """Scores ln 3, ln 2 and 0: probabilities 1/2, 1/3 and 1/6."""
    value, gradient = of_user(Loss(128, "softmax"), [LOG3, LOG2, 0.0], 2)
    same(value, log(2))
    same(gradient, -1 / 2, 1 / 3, 1 / 6)


@pytest.mark.parametrize("name", RANKINGS)
def test_a_term_weighs_what_its_samples_do_in_the_cross_entropy(name: LossName) -> None:
    """Slices of 3 over two positives with a negative each: weights 1/3, 1/3, 1/3 and 1.

    The first term weighs 2/3, the second 4/3: all scores equal, each is ln 2, with half the
    weight as derivative.
    """
    value, gradient = of_user(Loss(3, name), [0.7] * 4, 1)
    same(value, 2 * LOG2)
    same(gradient, -1 / 3, 1 / 3, -2 / 3, 2 / 3)


@pytest.mark.parametrize("name", get_args(LossName))
def test_no_samples_no_loss(name: LossName) -> None:
    value, gradient = of_user(Loss(128, name), [], 1)
    assert value == 0
    assert len(gradient) == 0


@pytest.mark.parametrize(
    "labels", [[1, 0, 1], [0, 1], [1, 1], [0, 0], [1, 0, 0, 0, 1, 0], [1, 0, 1, 1, 0, 0]], ids=str
)
def test_a_ranking_loss_needs_positives_each_with_its_negatives(labels: list[int]) -> None:
    labels_S = np.array(labels, dtype=np.float32)
    with pytest.raises(ValueError, match="in the order positive, its negatives"):
        samples_per_positive(labels_S)
    samples = Samples(np.arange(len(labels)), labels_S)
    for name in RANKINGS:
        loss: Loss = Loss(128, name)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="in the order positive, its negatives"):
            loss.of_user(torch.zeros(len(labels)), torch.from_numpy(labels_S))
        with pytest.raises(ValueError, match="in the order positive, its negatives"):
            distinct_pairs([samples], 9, loss, torch.zeros(1))


@pytest.mark.parametrize("name", get_args(LossName))
def test_scores_far_apart_keep_their_loss(name: LossName) -> None:
    """e^-60 is lost beside 1, not in the loss: each term is e^-60 to within its square."""
    value, gradient = of_user(Loss(128, name), [60.0, -60.0 if name == "bce" else 0.0], 1)
    size = float(np.exp(-60.0))
    assert float(value) == pytest.approx(size, rel=1e-12)
    expected = [-size / 2, size / 2] if name == "bce" else [-size, size]
    assert gradient.tolist() == pytest.approx(expected, rel=1e-12)


BLOCKS = st.tuples(
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(0, 10**6),
)


def block_of(positives: list[int], num_negatives: int, seed: int) -> tuple[list[Samples], Tensor]:
    """Samples of users over six items, so that many repeat, and a score a user and item."""
    rng = np.random.default_rng(seed)
    labels_U = [labels_of(count, num_negatives) for count in positives]
    samples_U = [Samples(rng.integers(0, 6, len(own)), own) for own in labels_U]
    return samples_U, torch.from_numpy(rng.normal(0, 3, (len(positives), 6)))


@pytest.mark.parametrize("name", get_args(LossName))
@given(BLOCKS)
def test_kernels_have_the_derivative_of_the_loss(
    name: LossName, block: tuple[list[int], int, int, int]
) -> None:
    """By samples (``mf``) and by distinct pairs (``neumf``), for all users and for each alone."""
    positives, num_negatives, slice_size, seed = block
    samples_U, scores_UI = block_of(positives, num_negatives, seed)
    loss, users = Loss(slice_size, name), range(len(samples_U))
    scores_UI.requires_grad_()
    items_U = [torch.from_numpy(own.items_S) for own in samples_U]
    losses = [
        loss.of_user(scores_UI[u, items_U[u]], torch.from_numpy(samples_U[u].labels_S).double())
        for u in users
    ]
    (expected_UI,) = torch.autograd.grad(sum(losses, losses[0] * 0), scores_UI)
    expected, scores_UI = torch.stack(losses).detach(), scores_UI.detach()

    flat = flatten_samples(samples_U, 6, slice_size)
    own = (
        labelled(flat, scores_UI) if loss.ranking is None else ranked(flat, loss.ranking, scores_UI)
    )
    where = (torch.from_numpy(flat.users_S), torch.from_numpy(flat.items_S))
    errors_S = own.errors(scores_UI[where])
    errors_UI = torch.zeros_like(scores_UI).index_put_(where, errors_S, accumulate=True)
    torch.testing.assert_close(errors_UI, expected_UI, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(own.losses(scores_UI[where]), expected, rtol=1e-12, atol=1e-13)

    pairs = distinct_pairs(samples_U, 6, loss, scores_UI)
    where = (pairs.users_P, pairs.items_R[pairs.rows_P])
    scores_P = scores_UI[where]
    torch.testing.assert_close(pairs.losses(scores_P), expected, rtol=1e-12, atol=1e-13)
    every = pairs.errors(scores_P, slice(0, len(samples_U)))
    torch.testing.assert_close(every, expected_UI[where], rtol=1e-12, atol=1e-13)
    alone = [slice(u, u + 1) for u in users]
    each = [pairs.errors(scores_P[pairs.of(user)], user) for user in alone]
    torch.testing.assert_close(torch.cat(each), expected_UI[where], rtol=1e-12, atol=1e-13)


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=6))
def test_ranking_derivatives_equal_autograd_and_sum_to_zero(scores: list[float]) -> None:
    for ranking in RANKINGS.values():
        scores_PX = torch.tensor([scores, scores[::-1]], dtype=torch.float64, requires_grad=True)
        (expected,) = torch.autograd.grad(ranking.terms(scores_PX).sum(), scores_PX)
        got = ranking.derivatives(scores_PX.detach())
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-15)
        assert float(got.sum(1).abs().max()) < 1e-15
