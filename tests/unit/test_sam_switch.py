"""Adaptive perturbations (ASAM): numbers by hand, identities, and settings that name themselves."""

from __future__ import annotations

from math import exp, log1p

import numpy as np
import pytest
import torch
from torch import Tensor

from models import mf_block, sam
from models.losses import Loss
from models.mf import ITEM, USER, MatrixFactorisation
from models.mf_layouts import dense_cells, sparse_rows
from models.reduce_samples import flatten_samples
from models.sam import Radii, perturb, sam_gradients
from models.types import Samples
from strategies.sam_config import SAMConfig

ONE_POSITIVE = Samples(np.array([0]), np.array([1], dtype=np.float32))
# ε = 1e-12 beside a gradient norm of 0.1 or more shortens the perturbation by 1e-11 of itself
RTOL = 1e-10


def _vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _sigmoid(value: float) -> float:
    return 1 / (1 + exp(-value))


def test_adaptive_step_by_hand() -> None:
    """w = (-1.99, 0.49), so T = (2, 1/2); g = (3, 16): T g = (6, 8) has norm 10.

    T² g = (12, 4), so ρ = 5 moves by 5/10 · (12, 4) = (6, 2).
    """
    moved = perturb({"w": _vector(-1.99, 0.49)}, {"w": _vector(3, 16)}, 5.0, adaptive=True)
    torch.testing.assert_close(moved["w"], _vector(4.01, 2.49), rtol=RTOL, atol=0)


def test_adaptive_norm_runs_over_all_tensors() -> None:
    """T = 1, so T g = g: (3, 4) and (12) have norm 13 together, as without adaptation."""
    point = {"x": _vector(0.99, -0.99), "y": _vector(0.99)}
    moved = perturb(point, {"x": _vector(3, 4), "y": _vector(12)}, 26.0, adaptive=True)
    torch.testing.assert_close(moved["x"], _vector(6.99, 7.01), rtol=RTOL, atol=0)
    torch.testing.assert_close(moved["y"], _vector(24.99), rtol=RTOL, atol=0)


def test_zero_gradient_moves_nothing() -> None:
    point = {"x": _vector(1.0, -2.0)}
    assert torch.equal(perturb(point, {"x": _vector(0, 0)}, 1.0, adaptive=True)["x"], point["x"])


@pytest.mark.parametrize("kernel", [False, True], ids=["reference", "kernel"])
def test_gradients_by_hand(kernel: bool) -> None:
    """One positive, D = 1, q = 1.99, p = 1, ρ = 1/2: the score 1.99 has e = σ(1.99) - 1 < 0.

    Shared: T = |q| + 0.01 = 2, so q moves by -ρ·T = -1 to 0.99 and h_q = (σ(0.99) - 1)·p.
    Private: T = |p| + 0.01 = 1.01, p moves to 1 - 0.505 = 0.495 and h_p = (σ(1.99·p') - 1)·q.
    """
    model, radii = MatrixFactorisation(factors=1), Radii(0.5, 0.5, adaptive=True)
    shared, private = {ITEM: _vector(1.99)[:, None]}, {USER: _vector(1.0)}
    if kernel:
        block = {USER: private[USER][None]}
        out = model.block_gradients(shared, block, [ONE_POSITIVE], Loss(128), radii)
        got = (out.shared[ITEM].to_dense()[0, 0], out.private[USER][0, 0], *out.losses[0])
    else:
        user = sam_gradients(model, shared, private, ONE_POSITIVE, Loss(128), radii)
        got = (user.shared[ITEM][0, 0], user.private[USER][0], *user.losses)
    moved = 1.99 * 0.495
    expected = [_sigmoid(0.99) - 1, (_sigmoid(moved) - 1) * 1.99]
    expected += [log1p(exp(-score)) for score in (1.99, 0.99, moved)]
    assert [float(value) for value in got] == pytest.approx(expected, rel=RTOL)


def _problem(scale: float = 1.0) -> tuple[dict[str, Tensor], dict[str, Tensor], list[Samples]]:
    """Items times ``scale``, users by it: the same scores. Items repeat within a user."""
    rng = np.random.default_rng(0)
    shared = {ITEM: torch.from_numpy(rng.normal(0, 0.7, (9, 4))) * scale}
    block = {USER: torch.from_numpy(rng.normal(0, 0.7, (3, 4))) / scale}
    labels = np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), 4)
    return shared, block, [Samples(rng.integers(0, 9, 20), labels) for _ in range(3)]


def test_loss_at_the_perturbed_point_does_not_depend_on_the_scale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kwon et al., theorem 2: with η = 0 adaptive sharpness is the same for (cQ, p/c).

    T g is the same for both and T² g is c times as large, so Q moves to c times the point.
    Plain SAM does not have it: its losses differ.
    """
    for module in (sam, mf_block):
        monkeypatch.setattr(module, "ADAPTIVE_ETA", 0.0)
    model = MatrixFactorisation(factors=4)

    def losses(scale: float, radii: Radii) -> Tensor:
        shared, block, samples = _problem(scale)
        return model.block_gradients(shared, block, samples, Loss(8), radii).losses

    adaptive, plain = Radii(0.4, 0.4, adaptive=True), Radii(0.4, 0.4)
    torch.testing.assert_close(losses(8.0, adaptive), losses(1.0, adaptive), rtol=RTOL, atol=0)
    assert not torch.allclose(losses(8.0, plain), losses(1.0, plain), rtol=0.01)


def test_entries_of_one_size_are_perturbed_as_without_adaptation() -> None:
    """|w| = 0.99 everywhere: T = 1."""
    shared, block, samples = _problem()
    shared, block = ({n: 0.99 * t.sign() for n, t in part.items()} for part in (shared, block))
    model = MatrixFactorisation(factors=4)
    got, expected = (
        model.block_gradients(shared, block, samples, Loss(8), Radii(0.3, 0.2, adaptive))
        for adaptive in (True, False)
    )
    torch.testing.assert_close(got.losses, expected.losses, rtol=RTOL, atol=0)
    torch.testing.assert_close(got.private[USER], expected.private[USER], rtol=RTOL, atol=RTOL)


def test_layouts_agree_on_squared_scores() -> None:
    shared, block, samples = _problem()
    flat, users_UD = flatten_samples(samples, 9, 8), block[USER]
    squares_UI = users_UD.square() @ (shared[ITEM].abs() + 0.01).square().T
    expected = squares_UI[torch.from_numpy(flat.users_S), torch.from_numpy(flat.items_S)]
    for layout in (dense_cells(flat, shared[ITEM]), sparse_rows(flat, shared[ITEM])):
        got_S = layout.squared_scores(users_UD, 0.01)
        torch.testing.assert_close(got_S, expected, rtol=1e-12, atol=0)


def test_a_switched_off_perturbation_stays_off() -> None:
    """Radii of zero are plain gradients to the bit, adaptive or not."""
    shared, block, samples = _problem()
    model = MatrixFactorisation(factors=4)
    got, expected = (
        model.block_gradients(shared, block, samples, Loss(8), Radii(adaptive=adaptive))
        for adaptive in (True, False)
    )
    assert torch.equal(got.shared[ITEM].to_dense(), expected.shared[ITEM].to_dense())
    assert torch.equal(got.private[USER], expected.private[USER])
    assert not Radii(adaptive=True).any_adaptive


@pytest.mark.parametrize("name", ["rho_shared", "rho_private"])
def test_negative_radii_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} must not be negative, got -0\.1"):
        SAMConfig(**{name: -0.1})
    assert SAMConfig(0.1, 0.2, adaptive=True).radii == Radii(0.1, 0.2, adaptive=True)
