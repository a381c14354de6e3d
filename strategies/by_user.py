"""Updates of single users, for servers that compare them: item tables as rows, user after user."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.tables import row_table
from models.types import IntArray, Tensors, Update


@dataclass(frozen=True)
class TableRows:
    """Rows of an item table that users have touched.

    A user has touched a row if its update of it is not zero, or has a row weight above zero.
    ``rows_R`` (int64) ascend within a user, ``values_RX`` are the user's sums, ``lengths_U`` how
    many rows each user has, ``weights_R`` what each is divided by where rows are weighted.
    """

    rows_R: Tensor
    values_RX: Tensor
    lengths_U: IntArray
    weights_R: Tensor | None = None

    @property
    def row_users(self) -> Tensor:
        """Each row's user, counted from 0."""
        return torch.from_numpy(np.repeat(np.arange(len(self.lengths_U)), self.lengths_U))


@dataclass(frozen=True)
class UserUpdates:
    """Updates of users by ascending global index; ``dense`` tensors are (U, …)."""

    users_U: IntArray
    weights_U: Tensor
    """By which a user counts in the mean, float64."""
    tables: dict[str, TableRows]
    dense: Tensors

    def __len__(self) -> int:
        return len(self.users_U)

    def of(self, place: int, like: Tensors) -> Update:
        """One user's update as it would have been added up, with tables that are sparse."""
        tensors, row_weights = {n: t[place] for n, t in self.dense.items()}, dict[str, Tensor]()
        for name, table in self.tables.items():
            part = self.part(name, place)
            num_items = len(like[name])
            tensors[name] = row_table(table.rows_R[part], table.values_RX[part], num_items)
            if table.weights_R is not None:
                weights_I = table.weights_R.new_zeros(num_items)
                row_weights[name] = weights_I.index_copy(
                    0, table.rows_R[part], table.weights_R[part]
                )
        dense = {n: t.to_dense() for n, t in tensors.items()}
        rest = {n: torch.zeros_like(t) for n, t in like.items() if n not in dense}
        return Update({**dense, **rest}, float(self.weights_U[place]), row_weights or None)

    def part(self, name: str, place: int) -> slice:
        """Places of a user's rows in a table."""
        stop = int(self.tables[name].lengths_U[: place + 1].sum())
        return slice(stop - int(self.tables[name].lengths_U[place]), stop)


def of_users(users_U: IntArray, updates: Sequence[Update], tables: Iterable[str]) -> UserUpdates:
    """The updates of single users; ``tables`` names those that are item tables."""
    tables = frozenset(tables)
    names = [n for n in updates[0].tensors if n in tables]
    dense = [n for n in updates[0].tensors if n not in tables]
    return UserUpdates(
        users_U,
        torch.tensor([float(update.weight) for update in updates], dtype=torch.float64),
        {name: _table(name, updates) for name in names},
        {name: torch.stack([update.tensors[name] for update in updates]) for name in dense},
    )


def _table(name: str, updates: Sequence[Update]) -> TableRows:
    parts = [_touched(update, name) for update in updates]
    weights = [weights_R for _, _, weights_R in parts if weights_R is not None]
    return TableRows(
        torch.cat([rows_R for rows_R, _, _ in parts]),
        torch.cat([values_RX for _, values_RX, _ in parts]),
        np.array([len(rows_R) for rows_R, _, _ in parts], dtype=np.int64),
        torch.cat(weights) if weights else None,
    )


def _touched(update: Update, name: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """Touched rows of a table, their values, and their weights where rows are weighted."""
    table, weights_I = update.tensors[name], (update.row_weights or {}).get(name)
    dense = table.to_dense()
    touched_I = dense.reshape(len(dense), -1).any(1)
    if weights_I is not None:
        touched_I = touched_I | (weights_I > 0)
    (rows_R,) = touched_I.nonzero(as_tuple=True)
    return rows_R, dense[rows_R], None if weights_I is None else weights_I[rows_R]


def joined(parts: Sequence[UserUpdates]) -> UserUpdates:
    """Updates of several nodes, or blocks of a node, by ascending user, whatever the parts.

    Raises:
        ValueError: for parts with other tensors than the first, or a user who is there twice.

    """
    first = parts[0]
    for part in parts:
        if (set(part.tables), set(part.dense)) != (set(first.tables), set(first.dense)):
            raise ValueError("users' updates have different tensors")
    users_U = np.concatenate([part.users_U for part in parts])
    order_U = np.argsort(users_U, kind="stable")
    if (np.diff(users_U[order_U]) == 0).any():
        raise ValueError("a user's update is there twice")
    places = torch.from_numpy(order_U)
    return UserUpdates(
        users_U[order_U],
        torch.cat([part.weights_U for part in parts])[places],
        {name: _ordered([part.tables[name] for part in parts], order_U) for name in first.tables},
        {name: torch.cat([part.dense[name] for part in parts])[places] for name in first.dense},
    )


def _ordered(parts: Sequence[TableRows], order_U: IntArray) -> TableRows:
    lengths_U = np.concatenate([part.lengths_U for part in parts])
    starts_U = np.cumsum(lengths_U) - lengths_U
    places = np.concatenate(
        [np.arange(starts_U[user], starts_U[user] + lengths_U[user]) for user in order_U]
    )
    at = torch.from_numpy(places)
    weights = [part.weights_R for part in parts if part.weights_R is not None]
    return TableRows(
        torch.cat([part.rows_R for part in parts])[at],
        torch.cat([part.values_RX for part in parts])[at],
        lengths_U[order_U],
        torch.cat(weights)[at] if weights else None,
    )
