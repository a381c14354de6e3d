"""Sums of item tables: dense, sparse, and of both kinds."""

from __future__ import annotations

import pytest
import torch

from models.tables import add_table, is_finite, mean_tables, row_table, sum_tables
from models.types import SumOfUpdates, Update


def rows(num_items: int) -> torch.Tensor:
    """Row 2 occurs twice."""
    values = torch.tensor([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
    return row_table(torch.tensor([2, 0, 2]), values, num_items)


def expected(num_items: int) -> torch.Tensor:
    table = torch.zeros(num_items, 2)
    table[2], table[0] = torch.tensor([101.0, 202.0]), torch.tensor([10.0, 20.0])
    return table


@pytest.mark.parametrize(("num_items", "sparse"), [(3, False), (4, True)])
def test_repeated_rows_add_up_in_either_form(num_items: int, sparse: bool) -> None:
    table = rows(num_items)
    assert table.is_sparse == sparse
    assert table.shape == (num_items, 2)
    assert torch.equal(table.to_dense(), expected(num_items))


def test_sums_of_all_kinds() -> None:
    """Sparse parts become dense once their rows are as many as the catalogue's."""
    sparse, dense = rows(9), torch.ones(9, 2)
    assert sum_tables([sparse]) is sparse
    twice = sum_tables([sparse, sparse])
    assert twice.is_sparse
    assert torch.equal(twice.to_dense(), 2 * expected(9))
    for four_parts in ([sparse] * 4, [dense, sparse, sparse, sparse]):
        assert not sum_tables(four_parts).is_sparse
    assert torch.equal(sum_tables([sparse] * 4), 4 * expected(9))
    assert torch.equal(sum_tables([sparse, dense]), 1 + expected(9))
    assert torch.equal(sum_tables([dense, dense]), 2 * dense)
    assert torch.equal(dense, torch.ones(9, 2))


def test_means() -> None:
    sparse = rows(9)
    assert mean_tables([sparse]) is sparse
    assert torch.equal(mean_tables([sparse, sparse]).to_dense(), expected(9))
    assert torch.equal(mean_tables([sparse, torch.zeros(9, 2)]), expected(9) / 2)


def test_updates_may_be_sparse() -> None:
    total = torch.ones(9, 2)
    add_table(total, rows(9))
    assert torch.equal(total, 1 + expected(9))
    summed = SumOfUpdates({"items": torch.zeros(9, 2)})
    for _ in range(2):
        summed.add(Update({"items": rows(9)}, 1.0))
    assert torch.equal(summed.result().tensors["items"], 2 * expected(9))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_is_finite(bad: float) -> None:
    """Also where the sum of finite numbers is not, and where infinities cancel."""
    assert is_finite(torch.tensor([1.0, -2.0]))
    assert is_finite(torch.zeros(0))
    assert is_finite(torch.full((4,), 3e38))
    assert is_finite(torch.tensor([1, 2]))
    assert not is_finite(torch.tensor([1.0, bad, 2.0]))
    assert not is_finite(torch.tensor([bad, -bad]))
    assert not is_finite(torch.tensor([3e38, 3e38, bad]))
