"""What all defences share, and the rows by which they look at item tables.

Item tables are sparse by users: a long-tail row is touched by few. A rule that takes a median
over all users, with zeros for those who did not touch a row, leaves every such row where it is.
The rules here judge a row among the users who touched it, and count it as much as they do: the
robust value times the sum of their weights, which is the plain sum where all of them agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from conf.tree import DefenceConfig
from models.types import IntArray, SumOfUpdates, Tensors, Update
from strategies.by_user import TableRows, UserUpdates
from strategies.defence import Scene, Verdict

Mask = npt.NDArray[np.bool_]
COLUMNS = 1 << 22
"""Entries of updates that are laid out densely at once."""
Centre = Callable[[Tensor], Tensor]
"""Values (N, …) of N users to one value (…)."""


@dataclass(frozen=True)
class Defence(DefenceConfig):
    """A rule; a subclass adds its settings and says how updates are combined."""

    by_user: ClassVar[bool] = True

    def combined(self, updates: UserUpdates, scene: Scene) -> Verdict:
        """The sum to step with.

        Raises:
            ValueError: when the updates are too few for the rule.

        """
        raise NotImplementedError


@dataclass(frozen=True)
class Expecting(Defence):
    """A rule that is told how many malicious updates to expect."""

    malicious: float = 0.1
    """Share of a round's updates that may be malicious, rounded up; below one half."""

    def __post_init__(self) -> None:
        if not 0 < self.malicious < 0.5:
            raise ValueError(f"malicious must be above 0 and below 0.5, got {self.malicious}")

    def expected(self, count: int) -> int:
        """Malicious ones among ``count`` updates, at most."""
        return math.ceil(Fraction(repr(self.malicious)) * count)


# ---- plain sums ----------------------------------------------------------------------------
def summed(
    updates: UserUpdates, scene: Scene, kept_U: Mask, factors_U: Tensor | None = None
) -> Update:
    """The sum over some users, each update multiplied by its factor."""
    total = SumOfUpdates(scene.shared)
    for place in np.flatnonzero(kept_U):
        update = updates.of(int(place), scene.shared)
        if factors_U is not None and factors_U[place] != 1:
            factor = float(factors_U[place])
            update = Update(
                {n: (factor * t).to(t.dtype) for n, t in update.tensors.items()},
                update.weight,
                update.row_weights,
            )
        total.add(update)
    return total.result()


def without(updates: UserUpdates, scene: Scene, kept_U: Mask) -> Verdict:
    """The sum over the users that are kept; the others are flagged."""
    return Verdict(summed(updates, scene, kept_U), updates.users_U[~kept_U])


# ---- a user's update as a point ------------------------------------------------------------
def gram(updates: UserUpdates, scene: Scene) -> npt.NDArray[np.float64]:
    """Inner products (U, U) of the users' means: each tensor over the user's own weight."""
    count = len(updates)
    total_UU = torch.zeros(count, count, dtype=torch.float64)
    for tensor in updates.dense.values():
        flat_UX = tensor.reshape(count, -1).double() / updates.weights_U[:, None]
        total_UU += flat_UX @ flat_UX.T
    for name, table in updates.tables.items():
        total_UU += _table_gram(table, updates, len(scene.shared[name]))
    found: npt.NDArray[np.float64] = total_UU.numpy()
    return found


def _table_gram(table: TableRows, updates: UserUpdates, num_items: int) -> Tensor:
    count = len(updates)
    values_RX = _means(table, updates).reshape(len(table.rows_R), -1)
    step = max(1, COLUMNS // max(1, count * values_RX.shape[1]))
    total_UU = torch.zeros(count, count, dtype=torch.float64)
    for start in range(0, num_items, step):
        inside_R = (table.rows_R >= start) & (table.rows_R < start + step)
        dense = values_RX.new_zeros(count, step, values_RX.shape[1])
        dense[table.row_users[inside_R], table.rows_R[inside_R] - start] = values_RX[inside_R]
        flat_UX = dense.reshape(count, -1)
        total_UU += flat_UX @ flat_UX.T
    return total_UU


def norms(updates: UserUpdates) -> npt.NDArray[np.float64]:
    """Euclidean norm (U,) of each user's mean."""
    squares_U = torch.zeros(len(updates), dtype=torch.float64)
    for tensor in updates.dense.values():
        flat_UX = tensor.reshape(len(updates), -1).double() / updates.weights_U[:, None]
        squares_U += flat_UX.square().sum(1)
    for table in updates.tables.values():
        flat_RX = _means(table, updates).reshape(len(table.rows_R), -1)
        squares_U.index_add_(0, table.row_users, flat_RX.square().sum(1))
    found: npt.NDArray[np.float64] = squares_U.sqrt().numpy()
    return found


def _means(table: TableRows, updates: UserUpdates) -> Tensor:
    """Each row over its weight, in double."""
    weights_R = _weights(table, updates)
    return table.values_RX.double() / _wide(weights_R.clamp(min=1e-30), table.values_RX)


def _weights(table: TableRows, updates: UserUpdates) -> Tensor:
    own_R = table.weights_R
    return updates.weights_U[table.row_users] if own_R is None else own_R.double()


def _wide(weights_R: Tensor, values_RX: Tensor) -> Tensor:
    return weights_R.reshape(-1, *[1] * (values_RX.dim() - 1))


# ---- coordinate-wise rules -----------------------------------------------------------------
def coordinate_wise(updates: UserUpdates, scene: Scene, centre: Centre) -> Update:
    """Each entry's robust value among the users who touched its row, times their weights.

    The update of a tensor that no user has is zero.
    """
    tensors = {n: torch.zeros_like(t) for n, t in scene.shared.items()}
    rows = dict[str, Tensor]()
    weight = float(updates.weights_U.sum())
    for name, tensor in updates.dense.items():
        mean_UX = tensor.double() / _wide(updates.weights_U, tensor)
        tensors[name] = (weight * centre(mean_UX)).to(tensor.dtype)
    for name, table in updates.tables.items():
        tensors[name] = _robust_table(table, updates, tensors[name], centre)
        if table.weights_R is not None:
            none_I = table.weights_R.new_zeros(len(tensors[name]))
            rows[name] = none_I.index_add(0, table.rows_R, table.weights_R)
    return Update(tensors, weight, rows or None)


def _robust_table(table: TableRows, updates: UserUpdates, zeros: Tensor, centre: Centre) -> Tensor:
    """Rows with the same number of users are taken together: a stack (N, rows, …) each time."""
    order_R = torch.argsort(table.rows_R, stable=True)
    means_RX, weights_R = _means(table, updates)[order_R], _weights(table, updates)[order_R]
    rows_D, counts_D = torch.unique_consecutive(table.rows_R[order_R], return_counts=True)
    starts_D = counts_D.cumsum(0) - counts_D
    out = zeros.clone()
    for count in torch.unique(counts_D).tolist():
        chosen_D = counts_D == count
        at_ND = starts_D[chosen_D] + torch.arange(count)[:, None]
        robust = _wide(weights_R[at_ND].sum(0), zeros) * centre(means_RX[at_ND])
        out[rows_D[chosen_D]] = robust.to(out.dtype)
    return out


def dense_coordinate_wise(updates: UserUpdates, scene: Scene, centre: Centre) -> Update:
    """The naive rule, over all users with zeros for rows they did not touch: for comparisons."""
    parts = [updates.of(place, scene.shared) for place in range(len(updates))]
    weight = float(updates.weights_U.sum())
    stacked = {n: torch.stack([part.mean()[n].double() for part in parts]) for n in scene.shared}
    return Update(
        {n: (weight * centre(t)).to(scene.shared[n].dtype) for n, t in stacked.items()}, weight
    )


def item_rows(shared: Tensors, names: list[str], rows_S: IntArray) -> Tensor:
    """Some rows of all item tables side by side (S, D)."""
    at = torch.from_numpy(rows_S)
    return torch.cat([shared[name][at].reshape(len(rows_S), -1) for name in names], dim=1)
