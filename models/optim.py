"""Functional optimisers over named tensors; their state is itself named tensors.

State travels in checkpoints and in a user's private row, so it must be plain tensors. The
Adam rule is Kingma & Ba (2015), Algorithm 1, in the form that PyTorch computes.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from models.types import Tensors

OptimiserName = Literal["adam", "sgd"]
FIRST, SECOND, STEP = "adam_m/", "adam_v/", "adam_step"
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
PIECE = 1 << 16
"""Entries of a table worked on at once."""


def init_state(name: OptimiserName, parameters: Tensors) -> Tensors:
    """Zero moments for ``parameters``; empty for SGD.

    The step counter is a scalar tensor of the parameters' dtype, so that a block of users
    stacks it to (U,) like everything else.
    """
    if name not in get_args(OptimiserName):
        raise ValueError(f"unknown optimiser {name!r}: choose one of {get_args(OptimiserName)}")
    if name == "sgd":
        return {}
    like = next(iter(parameters.values()))
    moments = {p + n: torch.zeros_like(t) for p in (FIRST, SECOND) for n, t in parameters.items()}
    return {**moments, STEP: like.new_zeros(())}


def step(
    name: OptimiserName, parameters: Tensors, gradients: Tensors, state: Tensors, lr: float
) -> tuple[Tensors, Tensors]:
    """One step on all tensors; returns new parameters and new state, inputs untouched.

    With a leading user dimension on everything (step counter (U,)) it steps each user alone.
    """
    if name == "sgd":
        return {n: p - lr * gradients[n] for n, p in parameters.items()}, {}
    count = state[STEP] + 1
    out, new_state = {}, {STEP: count}
    rate, root = lr / _correction(BETA1, count), _correction(BETA2, count).sqrt()
    for n, p in parameters.items():
        tensors = (
            p,
            gradients[n],
            state[FIRST + n],
            state[SECOND + n],
            _like(rate, p),
            _like(root, p),
        )
        update = _adam if p.numel() <= PIECE else _adam_in_pieces
        out[n], new_state[FIRST + n], new_state[SECOND + n] = update(*tensors)
    return out, new_state


def _adam(
    parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor, rate: Tensor, root: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """New parameter and moments, from a learning rate and √(1 − β₂ᵗ)."""
    first = torch.lerp(first, gradient, 1 - BETA1)
    second = (BETA2 * second).addcmul_(gradient, gradient, value=1 - BETA2)
    denominator = second.sqrt().div_(root).add_(EPS)
    return parameter - (rate * first).div_(denominator), first, second


def _adam_in_pieces(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same for a large table, some rows at a time: what is in between stays in cache."""
    table = tensors[0]
    moved, first, second = (torch.empty_like(table) for _ in range(3))
    rows = max(1, PIECE * len(table) // table.numel())
    for start in range(0, len(table), rows):
        part = slice(start, start + rows)
        own = (t if len(t) == 1 else t[part] for t in tensors)
        moved[part], first[part], second[part] = _adam(*own)
    return moved, first, second


def _correction(beta: float, count: Tensor) -> Tensor:
    """1 − βᵗ in double: in float32 1 − 0.999 alone is off by 5e-5 of its value."""
    return (1 - beta ** count.double()).to(count.dtype)


def _like(per_user: Tensor, parameter: Tensor) -> Tensor:
    """Shape a () or (U,) tensor so that it broadcasts over ``parameter``."""
    return per_user.reshape(per_user.shape + (1,) * (parameter.dim() - per_user.dim()))
