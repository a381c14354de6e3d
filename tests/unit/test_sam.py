"""Losses and block-wise SAM gradients on a model small enough to work out by hand."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from models.base import ScoringModel
from models.losses import Loss, sample_weights, sliced_bce
from models.sam import Radii, UserGradients, global_norm, loop_gradients, perturb, sam_gradients
from models.types import IntArray, Samples, Tensors

TWO = Samples(np.array([0, 1]), np.array([1, 0], dtype=np.float32))
"""Item 0 is a positive, item 1 a negative."""
# ε = 1e-12 beside a gradient norm of 0.35 or 0.5 shortens the perturbation by 3e-12 of itself
RTOL, ATOL = 1e-11, 1e-15


@dataclass(frozen=True)
class Product(ScoringModel):
    """One number an item, one number a user: s_i = a_i · b."""

    item_tables: ClassVar[frozenset[str]] = frozenset({"a"})

    def init_shared(self, num_items: int, rng: np.random.Generator) -> Tensors:
        return {"a": torch.zeros(num_items)}

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        return {"b": torch.zeros(())}

    def logits(self, shared: Tensors, private: Tensors, items_S: Tensor) -> Tensor:
        return shared["a"][items_S] * private["b"]

    def scores(self, shared: Tensors, private_block: Tensors, items_R: IntArray | None) -> Tensor:
        raise NotImplementedError

    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray
    ) -> Tensor:
        raise NotImplementedError


def _gradients(a: list[float], b: float, radii: Radii) -> UserGradients:
    shared = {"a": torch.tensor(a, dtype=torch.float64)}
    private = {"b": torch.tensor(b, dtype=torch.float64)}
    return sam_gradients(Product(), shared, private, TWO, Loss(128), radii)


def _vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_shared_perturbation_by_hand() -> None:
    """a = (0, 0), b = 1: both scores are 0, the loss is the mean of two ln 2.

    dL/ds = ((σ(0) − 1)/2, σ(0)/2) = (−1/4, 1/4), so g_a = (−1/4, 1/4), of direction
    (−1, 1)/√2, and g_b = Σ dL/ds · a = 0. With ρ_shared = √2 · ln 3 the moved items are
    (−ln 3, ln 3), where σ is (1/4, 3/4): each sample loses ln 4 and
    h_a = ((1/4 − 1)/2, (3/4)/2) = (−3/8, 3/8). The private gradient is zero, so u is not
    moved: h_b = 0 and its loss is ln 2 again.
    """
    out = _gradients([0.0, 0.0], 1.0, Radii(shared=sqrt(2) * log(3), private=5.0))
    torch.testing.assert_close(out.shared["a"], _vector(-3 / 8, 3 / 8), rtol=RTOL, atol=ATOL)
    assert out.private["b"] == 0
    torch.testing.assert_close(out.losses, _vector(log(2), log(4), log(2)), rtol=RTOL, atol=ATOL)


def test_private_perturbation_by_hand() -> None:
    """a = (1, −1), b = 0: dL/ds = (−1/4, 1/4) again, g_b = −1/4 − 1/4 = −1/2, g_a = 0.

    With ρ_private = ln 3 the moved b is −ln 3 and the scores (−ln 3, ln 3), so
    dL/ds = (−3/8, 3/8) and h_b = −3/4. The shared gradient is zero: θ is not moved.
    """
    out = _gradients([1.0, -1.0], 0.0, Radii(shared=5.0, private=log(3)))
    torch.testing.assert_close(out.private["b"], torch.tensor(-0.75).double(), rtol=RTOL, atol=ATOL)
    assert torch.equal(out.shared["a"], _vector(0, 0))
    torch.testing.assert_close(out.losses, _vector(log(2), log(2), log(4)), rtol=RTOL, atol=ATOL)


def test_each_block_is_perturbed_alone() -> None:
    """Switching one perturbation off leaves the other block's gradient as it was, exactly."""
    point = ([0.3, -0.7], 1.1)
    both = _gradients(*point, Radii(0.5, 0.25))
    shared, private = _gradients(*point, Radii(shared=0.5)), _gradients(*point, Radii(private=0.25))
    plain = _gradients(*point, Radii())
    assert torch.equal(both.shared["a"], shared.shared["a"])
    assert torch.equal(both.private["b"], private.private["b"])
    assert torch.equal(private.shared["a"], plain.shared["a"])
    assert torch.equal(shared.private["b"], plain.private["b"])
    assert not torch.equal(both.shared["a"], plain.shared["a"])
    assert not torch.equal(both.private["b"], plain.private["b"])
    assert torch.equal(plain.losses.isnan(), torch.tensor([False, True, True]))


def test_perturbation_has_the_length_of_the_radius() -> None:
    """The norm runs over all tensors together: (3, 4) and (12) have norm 13."""
    point = {"x": _vector(0, 0), "y": _vector(1)}
    gradient = {"x": _vector(3, 4), "y": _vector(12)}
    assert global_norm(gradient) == 13
    moved = perturb(point, gradient, 26.0)
    torch.testing.assert_close(moved["x"], _vector(6, 8), rtol=RTOL, atol=ATOL)
    torch.testing.assert_close(moved["y"], _vector(25), rtol=RTOL, atol=ATOL)


def test_zero_gradient_moves_nothing() -> None:
    point = {"x": torch.tensor([1.0, 2.0])}
    assert torch.equal(perturb(point, {"x": torch.zeros(2)}, 1.0)["x"], point["x"])


def test_loop_sums_shared_and_stacks_private() -> None:
    shared = {"a": _vector(0.2, -0.1)}
    users = [{"b": torch.tensor(b, dtype=torch.float64)} for b in (0.5, -1.5)]
    block = {"b": torch.stack([user["b"] for user in users])}
    one_slice = Samples(np.array([1, 1, 0]), np.array([1, 0, 0], dtype=np.float32))
    each = [
        sam_gradients(Product(), shared, user, samples, Loss(2), Radii(0.1, 0.2))
        for user, samples in zip(users, (TWO, one_slice), strict=True)
    ]
    both = loop_gradients(Product(), shared, block, [TWO, one_slice], Loss(2), Radii(0.1, 0.2))
    assert torch.equal(both.shared["a"], each[0].shared["a"] + each[1].shared["a"])
    assert torch.equal(both.private["b"], torch.stack([user.private["b"] for user in each]))
    assert torch.equal(both.losses, torch.stack([user.losses for user in each]))


@pytest.mark.parametrize("num_samples", [1, 3, 4, 8, 11])
def test_loss_is_the_sum_of_slice_means(num_samples: int) -> None:
    generator = torch.Generator().manual_seed(num_samples)
    logits = torch.randn(num_samples, generator=generator, dtype=torch.float64)
    labels = (torch.rand(num_samples, generator=generator) < 0.3).double()
    each = -(labels * logits.sigmoid().log() + (1 - labels) * (-logits).sigmoid().log())
    expected = sum(each[start : start + 4].mean() for start in range(0, num_samples, 4))
    torch.testing.assert_close(sliced_bce(logits, labels, 4), expected, rtol=RTOL, atol=ATOL)


def test_weights_of_a_short_last_slice() -> None:
    assert sample_weights(5, 3).tolist() == [1 / 3, 1 / 3, 1 / 3, 1 / 2, 1 / 2]


def test_no_samples_no_loss() -> None:
    logits = torch.zeros(0, requires_grad=True)
    assert sliced_bce(logits, torch.zeros(0), 128) == 0
    empty = Samples(np.array([], dtype=np.int64), np.array([], dtype=np.float32))
    shared, private = {"a": torch.ones(2)}, {"b": torch.ones(())}
    out = sam_gradients(Product(), shared, private, empty, Loss(128), Radii(0.1, 0.1))
    assert torch.equal(out.shared["a"], torch.zeros(2))
    assert out.private["b"] == 0
    assert torch.equal(out.losses, torch.zeros(3))
