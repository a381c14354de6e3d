"""A user's update held within an L2 ball, so that one user moves a sum by a known length.

All that a user sends is in the norm. The weight becomes 1: a sum of weights says nothing but how
many users there were. Row weights say which items a user has, and are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from models.types import Tensors, Update

ROUNDING = 1 - 2.0**-20
"""Scaled values are rounded once in float32, by 2⁻²⁴ of each: the norm stays within its bound."""


@dataclass(frozen=True)
class Bounds:
    """Greatest norm of an update, or of its ``tables`` and of all the rest by themselves."""

    clip: float
    clip_dense: float | None = None
    tables: frozenset[str] = frozenset()

    @property
    def total(self) -> float:
        """Greatest norm of the whole: √(clip² + clip_dense²)."""
        return math.hypot(self.clip, self.clip_dense or 0.0)

    def groups(self, names: Iterable[str]) -> list[tuple[list[str], float]]:
        """The names that share a norm, with their bound."""
        names = list(names)
        if self.clip_dense is None:
            return [(names, self.clip)]
        tables = [name for name in names if name in self.tables]
        rest = [name for name in names if name not in self.tables]
        return [(tables, self.clip), (rest, self.clip_dense)]


@dataclass(frozen=True)
class Clipped:
    """An update within its bounds, and whether any of its norms was above."""

    update: Update
    was_above: bool


def clipped(update: Update, bounds: Bounds, idle: frozenset[str] = frozenset()) -> Clipped:
    """The update of one user, as if its weight were 1, scaled down to its bounds.

    ``idle`` tensors become zero.

    Raises:
        ValueError: for an update that is not finite, which no scale brings within a bound, or
            that has row weights.

    """
    if update.row_weights is not None:
        raise ValueError("row weights tell a user's items, and are not clipped")
    tensors = {n: _scaled(_merged(t), 1 / update.weight) for n, t in update.tensors.items()}
    tensors |= {n: torch.zeros_like(tensors[n]) for n in idle & tensors.keys()}
    above = False
    for names, bound in bounds.groups(tensors):
        length = norm({n: tensors[n] for n in names})
        if not math.isfinite(length):
            raise ValueError("the update is not finite and cannot be clipped")
        if length <= bound * ROUNDING:
            continue
        above, scale = True, bound / length * ROUNDING
        tensors |= {n: _scaled(tensors[n], scale) for n in names}
    return Clipped(Update(tensors, 1.0), above)


def norm(tensors: Mapping[str, Tensor]) -> float:
    """L2 norm, in float64, of all tensors together; sparse ones must be coalesced."""
    lengths = (torch.linalg.vector_norm(_values(t), dtype=torch.float64) for t in tensors.values())
    return math.hypot(*map(float, lengths))


def _merged(table: Tensor) -> Tensor:
    """A sparse table's rows that occur several times, added."""
    if not table.is_sparse:
        return table
    # Updates made in inference mode can be coalesced only there.
    with torch.inference_mode():
        return table.coalesce()


def _values(table: Tensor) -> Tensor:
    return table.values() if table.is_sparse else table


def _scaled(table: Tensor, scale: float) -> Tensor:
    if scale == 1 or not table.is_sparse:
        return table if scale == 1 else table * scale
    return torch.sparse_coo_tensor(
        table.indices(),
        table.values() * scale,
        table.shape,
        is_coalesced=True,
        check_invariants=False,
    )


def noisy(tensors: Tensors, noise: Mapping[str, Tensor]) -> Tensors:
    """The tensors, dense, with noise added; those without any as they are."""
    return {n: t.to_dense() + noise[n].to(t) if n in noise else t for n, t in tensors.items()}
