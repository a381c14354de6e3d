"""Sharpness of losses whose rise and curvature are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.objective import MeanLoss, Term, combined, inner
from experiments.sharpness import TOLERANCE, highest_rise, mean_rise_alone, top_eigenvalue
from models.losses import Loss
from models.mf import MatrixFactorisation
from models.rng import Role, derive_rng
from models.types import Tensors
from server_app.errors import ServerError

EPS64 = 2.0**-52


def quadratic(*eigenvalues: float) -> Term:
    """½ Σ λ x², its entries spread over two tensors."""
    values = torch.tensor(eigenvalues, dtype=torch.float64)

    def term(point: Tensors) -> Tensor:
        x = torch.cat([point["a"], point["b"].flatten()])
        return 0.5 * (values * x.square()).sum()

    return term


def at(*entries: float) -> Tensors:
    values = torch.tensor(entries, dtype=torch.float64)
    return {"a": values[:1], "b": values[1:][None]}


def rng() -> np.random.Generator:
    return derive_rng(0, Role.LANDSCAPE, 9)


# ---- the mean loss -----------------------------------------------------------------------
def test_value_gradient_and_curvature_are_means_over_terms() -> None:
    loss = MeanLoss([quadratic(2.0, 0.0, 4.0), quadratic(0.0, 6.0, 0.0)])
    point, vector = at(1.0, 2.0, 3.0), at(1.0, 1.0, -1.0)
    # ½(2·1 + 4·9) = 19 and ½·6·4 = 12
    assert loss.value(point) == 15.5
    value, gradient = loss.gradient(point)
    assert value == 15.5
    assert torch.equal(gradient["a"], torch.tensor([1.0]).double())
    assert torch.equal(gradient["b"], torch.tensor([[6.0, 6.0]]).double())
    product = loss.curvature(point, dict(reversed(vector.items())))  # by name, not by place
    assert torch.equal(product["a"], torch.tensor([1.0]).double())
    assert torch.equal(product["b"], torch.tensor([[3.0, -2.0]]).double())


def test_curvature_of_a_linear_term_and_of_tensors_it_lacks_is_zero() -> None:
    product = MeanLoss([lambda point: 3.0 * point["a"].sum()]).curvature(at(1, 2), at(1, 1))
    assert not product["a"].any()
    assert not product["b"].any()


def test_curvature_of_a_model_is_the_difference_of_its_gradients() -> None:
    model, generator = MatrixFactorisation(factors=3, init_std=0.5), rng()
    shared = {n: t.double() for n, t in model.init_shared(5, generator).items()}
    private = {n: t.double() for n, t in model.init_private(5, generator).items()}
    items, labels = torch.tensor([0, 3, 3, 1]), torch.tensor([1.0, 0.0, 1.0, 0.0]).double()
    loss = MeanLoss([lambda s: Loss(2).of_user(model.logits(s, private, items), labels)])
    vector = {n: torch.from_numpy(generator.standard_normal(t.shape)) for n, t in shared.items()}
    step = 1e-4
    ends = [loss.gradient(combined((1.0, shared), (s * step, vector)))[1] for s in (1, -1)]
    difference = combined((0.5 / step, ends[0]), (-0.5 / step, ends[1]))
    product = loss.curvature(shared, vector)
    # Central differences: step² times a third derivative of order one, and rounding over step.
    error = combined((1.0, product), (-1.0, difference))
    assert math.sqrt(inner(error, error)) < 10 * step**2 + 100 * EPS64 / step
    assert inner(product, product) > 0.01


# ---- eigenvalues -------------------------------------------------------------------------
def test_top_eigenvalue_of_a_quadratic() -> None:
    found = top_eigenvalue(MeanLoss([quadratic(7.0, 1.0, -2.0)]), at(0.3, 0.1, 0.2), rng())
    assert found.value == pytest.approx(7.0, abs=7 * TOLERANCE)
    assert found.residual <= 7 * TOLERANCE
    # A vector misses its own by at most its residual over the gap to the next eigenvalue.
    assert abs(float(found.vector["a"][0])) == pytest.approx(1.0, abs=found.residual / 6)


def test_the_top_is_not_a_greater_negative_one() -> None:
    found = top_eigenvalue(MeanLoss([quadratic(-9.0, 3.0, 1.0)]), at(0.3, 0.1, 0.2), rng())
    assert found.value == pytest.approx(3.0, abs=3 * TOLERANCE)


def test_the_top_of_a_negative_definite_one() -> None:
    found = top_eigenvalue(MeanLoss([quadratic(-9.0, -3.0, -1.0)]), at(0.3, 0.1, 0.2), rng())
    assert found.value == pytest.approx(-1.0, abs=TOLERANCE)


@pytest.mark.parametrize("seed", range(5))
def test_a_close_second_eigenvalue_is_not_taken_for_the_top(seed: int) -> None:
    """Of 2000, 1 and 0.999 stand over a bulk to 0.7, from a start that holds little of the top.

    Power iteration until its quotient moves by less than 1e-4 leaves a residual of 0.009 here,
    too much to tell which of the two it found.
    """
    bulk = np.linspace(-0.7, 0.7, 1998).tolist()
    loss, point = MeanLoss([quadratic(1.0, 0.999, *bulk)]), at(*[0.1] * 2000)
    found = top_eigenvalue(loss, point, derive_rng(seed, Role.LANDSCAPE, 9))
    # An eigenvalue lies within the residual of what was found, and 0.999 is further from 1.
    assert found.residual <= TOLERANCE
    assert found.value == pytest.approx(1.0, abs=TOLERANCE)


@pytest.mark.parametrize("curvature", [3.0, -3.0])
def test_a_single_parameter(curvature: float) -> None:
    loss = MeanLoss([lambda point: 0.5 * curvature * point["a"].square().sum()])
    found = top_eigenvalue(loss, {"a": torch.ones(1).double()}, rng())
    assert (found.value, found.residual) == (curvature, 0.0)


def test_the_top_of_a_model_is_that_of_its_dense_hessian() -> None:
    model, generator = MatrixFactorisation(factors=3, init_std=0.5), rng()
    shared = {n: t.double() for n, t in model.init_shared(5, generator).items()}
    private = {n: t.double() for n, t in model.init_private(5, generator).items()}
    items, labels = torch.tensor([0, 3, 3, 1]), torch.tensor([1.0, 0.0, 1.0, 0.0]).double()
    loss = MeanLoss([lambda s: Loss(2).of_user(model.logits(s, private, items), labels)])
    sizes, columns = {n: t.numel() for n, t in shared.items()}, []
    for name, size in sizes.items():
        for entry in range(size):
            unit = {n: torch.zeros_like(t) for n, t in shared.items()}
            unit[name].view(-1)[entry] = 1.0
            image = loss.curvature(shared, unit)
            columns.append(torch.cat([image[n].flatten() for n in sizes]))
    top = float(torch.linalg.eigvalsh(torch.stack(columns))[-1])
    found = top_eigenvalue(loss, shared, rng())
    assert found.value == pytest.approx(top, rel=TOLERANCE)
    assert top > 0.01


def test_an_eigenvalue_that_is_not_found_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.sharpness.MOST_RESTARTS", 1)
    loss = MeanLoss([quadratic(*np.linspace(0, 1, 500).tolist())])
    with pytest.raises(ServerError, match="greatest eigenvalue was not found"):
        top_eigenvalue(loss, at(*[0.1] * 500), rng())


def test_no_curvature_at_all() -> None:
    found = top_eigenvalue(MeanLoss([lambda point: point["a"].sum()]), at(1.0, 2.0), rng())
    assert (found.value, found.residual) == (0.0, 0.0)


# ---- rises in a ball ---------------------------------------------------------------------
def test_rise_of_a_linear_loss_is_its_slope_times_the_radius() -> None:
    loss = MeanLoss([lambda point: 3.0 * point["a"].sum() + 4.0 * point["b"].sum()])
    assert highest_rise(loss, at(1.0, 1.0), 0.1) == pytest.approx(0.5, rel=100 * EPS64)


def test_rise_along_the_steepest_axis_of_a_quadratic() -> None:
    # From (0.2, 0) the gradient stays on the axis: ½·4·(0.3² - 0.2²) = 0.1
    rise = highest_rise(MeanLoss([quadratic(4.0, 1.0)]), at(0.2, 0.0), 0.1)
    assert rise == pytest.approx(0.1, rel=100 * EPS64)


def test_rise_lies_between_that_of_one_step_and_the_maximum() -> None:
    radius, (x, y) = 0.5, (0.2, 0.3)

    def rise_at(to_x: np.ndarray, to_y: np.ndarray) -> np.ndarray:
        return 0.5 * (4 * (to_x**2 - x**2) + to_y**2 - y**2)

    angles = np.linspace(0, 2 * np.pi, 100_001)
    # A convex loss is highest on the border; the nearest of the angles misses its maximum by
    # less than half the curvature along it, at most ½ · 4 · radius² + its slope, times 1e-8.
    highest = rise_at(x + radius * np.cos(angles), y + radius * np.sin(angles)).max()
    slope = np.hypot(4 * x, y)
    one_step = rise_at(x + radius * 4 * x / slope, y + radius * y / slope)
    rise = highest_rise(MeanLoss([quadratic(4.0, 1.0)]), at(x, y), radius)
    assert one_step < rise <= highest + 1e-7


def test_at_a_minimum_the_first_step_goes_where_it_is_told() -> None:
    loss, minimum = MeanLoss([quadratic(4.0, 1.0)]), at(0.0, 0.0)
    assert highest_rise(loss, minimum, 0.1) == 0.0
    assert highest_rise(loss, minimum, 0.1, first=at(2.0, 0.0)) == pytest.approx(0.02)


def test_users_alone_rise_more_than_their_mean() -> None:
    opposed = [lambda point: point["a"].sum(), lambda point: -point["a"].sum()]
    loss, point = MeanLoss(opposed), at(0.0, 0.0)
    assert highest_rise(loss, point, 0.1) == 0.0
    assert mean_rise_alone(loss, point, 0.1) == pytest.approx(0.1)
