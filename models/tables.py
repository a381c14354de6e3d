"""Updates of item tables that may be sparse: a few rows instead of the whole catalogue.

A block of users touches few rows of a large catalogue, and filling a whole table for each
block would cost more than its training. Such a table is a sparse COO tensor (I, …) of item
rows, where a row may occur several times; its occurrences add up.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FEW = 4
"""Sums are rows by themselves where the catalogue has more than this many times as many."""


def row_table(rows_S: Tensor, values_SX: Tensor, num_items: int) -> Tensor:
    """Table (I, …) that is zero but for ``values`` in ``rows``; rows that repeat add up.

    Sparse as long as that is the smaller form.
    """
    shape = (num_items, *values_SX.shape[1:])
    if len(rows_S) >= num_items:
        return values_SX.new_zeros(shape).index_add_(0, rows_S, values_SX)
    device = values_SX.device
    return torch.sparse_coo_tensor(
        rows_S[None], values_SX, shape, device=device, check_invariants=False
    )


def few_rows_table(rows_S: Tensor, values_SX: Tensor, num_items: int) -> Tensor:
    """The same, sparse only where few rows of the catalogue are concerned."""
    table = row_table(rows_S, values_SX, num_items)
    return table if FEW * len(rows_S) < num_items else table.to_dense()


def add_table(total: Tensor, table: Tensor) -> None:
    """Add a dense or sparse table to a dense one, in place."""
    if table.is_sparse:
        # torch's own dense += sparse takes twice as long.
        total.index_add_(0, table._indices()[0], table._values())
    else:
        total += table


def sum_tables(tables: Sequence[Tensor]) -> Tensor:
    """Sum, in order, of tables of one shape; sparse only if all of them are."""
    if len(tables) == 1:
        return tables[0]
    if all(table.is_sparse for table in tables):
        rows_S = torch.cat([table._indices()[0] for table in tables])
        return row_table(rows_S, torch.cat([t._values() for t in tables]), len(tables[0]))
    total = torch.zeros_like(tables[0], layout=torch.strided)
    for table in tables:
        add_table(total, table)
    return total


def row_lengths(table: Tensor) -> Tensor:
    """Sum of absolute values of each row (I,) of a table whose rows occur once at most."""
    if not table.is_sparse:
        return table.abs().flatten(1).sum(1)
    lengths_R = table._values().abs().flatten(1).sum(1)
    return lengths_R.new_zeros(len(table)).index_add_(0, table._indices()[0], lengths_R)


def scale_rows(table: Tensor, factors_I: Tensor) -> Tensor:
    """The table with each row multiplied by its factor; sparse if it is."""
    wide_I = factors_I.reshape(-1, *[1] * (table.dim() - 1))
    if not table.is_sparse:
        return table * wide_I
    rows_R = table._indices()[0]
    return row_table(rows_R, table._values() * wide_I[rows_R], len(table))


def mean_tables(tables: Sequence[Tensor]) -> Tensor:
    """Mean of tables of one shape."""
    return tables[0] if len(tables) == 1 else sum_tables(tables) / len(tables)


def is_finite(tensor: Tensor) -> bool:
    """Whether all entries are finite; a sum alone says so unless it overflows."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())
