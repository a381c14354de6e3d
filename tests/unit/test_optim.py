"""The functional optimisers against torch's own, alone and over a block of users."""

from __future__ import annotations

import pytest
import torch

from models import optim
from models.types import Tensors

# Both compute the same rule in a few roundings a step; ten steps of size lr cannot differ by
# more than some hundred units in the last place of a value near one.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-13}


def _random(seed: int, dtype: torch.dtype, *lead: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {"table": (4, 3), "vector": (5,), "number": ()}
    return {
        n: torch.randn((*lead, *s), generator=generator, dtype=dtype) for n, s in shapes.items()
    }


def _stack(parts: list[Tensors]) -> Tensors:
    return {n: torch.stack([part[n] for part in parts]) for n in parts[0]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adam_is_torchs_adam(dtype: torch.dtype) -> None:
    ours = _random(0, dtype)
    theirs = {n: t.clone().requires_grad_() for n, t in ours.items()}
    optimiser = torch.optim.Adam(theirs.values(), lr=0.1)
    state = optim.init_state("adam", ours)
    for round_ in range(1, 11):
        gradients = _random(round_, dtype)
        for name, leaf in theirs.items():
            leaf.grad = gradients[name].clone()
        optimiser.step()
        ours, state = optim.step("adam", ours, gradients, state, 0.1)
        for name, leaf in theirs.items():
            torch.testing.assert_close(
                ours[name], leaf.detach(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
            )
    assert state[optim.STEP] == 10


def test_first_adam_step_by_hand() -> None:
    """After one step m̂ = g and v̂ = g², so x moves by lr · g / (|g| + ε).

    With g = 3e-8, ε = 1e-8 and lr = 0.1 that is 0.1 · 3/4 = 0.075, and 0.1 for a large g.
    """
    start = {"x": torch.zeros(3)}
    gradient = {"x": torch.tensor([3e-8, -5.0, 0.0])}
    moved, _ = optim.step("adam", start, gradient, optim.init_state("adam", start), 0.1)
    # 0.001 · g² is formed in float32: relative error of a few 6e-8
    torch.testing.assert_close(moved["x"], torch.tensor([-0.075, 0.1, 0.0]), rtol=1e-6, atol=0)


def test_bias_correction_keeps_float32_precision() -> None:
    """v̂ = g² after one step, to float32 rounding; 1 − 0.999 in float32 would be 5e-5 off."""
    start = {"x": torch.zeros(1)}
    state = optim.init_state("adam", start)
    moved, _ = optim.step("adam", start, {"x": torch.ones(1)}, state, 1.0)
    assert abs(moved["x"].item() + 1.0) < 1e-6


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_block_steps_each_user_alone(name: optim.OptimiserName) -> None:
    rows = [_random(seed, torch.float32) for seed in range(3)]
    states = [optim.init_state(name, row) for row in rows]
    if name == "adam":  # users that took part in different numbers of rounds
        for rounds, state in enumerate(states):
            state[optim.STEP] = torch.tensor(float(rounds))
    gradients = [_random(seed + 10, torch.float32) for seed in range(3)]
    alone = [
        optim.step(name, row, gradient, state, 0.1)
        for row, gradient, state in zip(rows, gradients, states, strict=True)
    ]
    block, block_state = optim.step(name, _stack(rows), _stack(gradients), _stack(states), 0.1)
    for user, (row, row_state) in enumerate(alone):
        # vector and remainder loops may fuse differently: a few roundings of values near one
        for actual, expected in ((block, row), (block_state, row_state)):
            for key, tensor in expected.items():
                torch.testing.assert_close(actual[key][user], tensor, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_inputs_are_left_alone(name: optim.OptimiserName) -> None:
    parameters, gradients = _random(0, torch.float32), _random(1, torch.float32)
    state = optim.init_state(name, parameters)
    before = [{n: t.clone() for n, t in part.items()} for part in (parameters, gradients, state)]
    optim.step(name, parameters, gradients, state, 0.1)
    for part, copy in zip((parameters, gradients, state), before, strict=True):
        assert all(torch.equal(part[n], copy[n]) for n in copy)


def test_sgd_by_hand() -> None:
    moved, state = optim.step("sgd", {"x": torch.ones(2)}, {"x": torch.tensor([2.0, -4])}, {}, 0.25)
    assert torch.equal(moved["x"], torch.tensor([0.5, 2.0]))
    assert state == optim.init_state("sgd", moved) == {}


def test_unknown_optimiser_is_named() -> None:
    with pytest.raises(ValueError, match="unknown optimiser 'adamw'"):
        optim.init_state("adamw", {"x": torch.zeros(1)})  # type: ignore[arg-type]


@pytest.mark.parametrize("piece", [1, 4, 10, 1000])
@pytest.mark.parametrize("lead", [(), (7,)], ids=["shared", "block of users"])
def test_a_table_in_pieces_makes_the_same_step(
    monkeypatch: pytest.MonkeyPatch, lead: tuple[int, ...], piece: int
) -> None:
    """Pieces of less than a row are a row; users of a block differ in their number of steps."""
    dtype = torch.float64
    start, gradients = _random(0, dtype, *lead), _random(1, dtype, *lead)
    moments = _random(2, dtype, *lead)
    state = {p + n: t.abs() for p in (optim.FIRST, optim.SECOND) for n, t in moments.items()}
    state[optim.STEP] = torch.arange(7, dtype=dtype) if lead else torch.tensor(3, dtype=dtype)
    whole = optim.step("adam", start, gradients, state, 0.1)
    monkeypatch.setattr(optim, "PIECE", piece)
    pieces = optim.step("adam", start, gradients, state, 0.1)
    for one, other in zip(whole, pieces, strict=True):
        assert one.keys() == other.keys()
        for name, tensor in one.items():
            # Vectorised and single entries may round a multiply-add differently: a unit or two.
            torch.testing.assert_close(other[name], tensor, rtol=1e-15, atol=1e-15)
