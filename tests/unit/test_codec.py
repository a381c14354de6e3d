"""Named tensors to array records and back, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from models.types import Tensors
from strategies.codec import (
    INDEX,
    VALUES,
    WireError,
    from_arrays,
    from_sparse_arrays,
    to_arrays,
    to_sparse_arrays,
)

TABLES = ("table", "bias")


def tensors(num_items: int = 10, touched: tuple[int, ...] = (2, 7)) -> Tensors:
    table = torch.zeros(num_items, 3)
    bias = torch.zeros(num_items)
    for row in touched:
        table[row] = torch.arange(3) + row
        bias[row] = row
    return {"table": table, "bias": bias, "w": torch.ones(2, 2), "scalar": torch.tensor(5.0)}


def template() -> Tensors:
    return {n: torch.zeros_like(t) for n, t in tensors().items()}


def test_dense_round_trip_keeps_order_dtype_and_prefix() -> None:
    given = {"b": torch.tensor(1.5, dtype=torch.float64), "a": torch.arange(6).reshape(2, 3)}
    back = from_arrays(to_arrays(given, "p/"), "p/")
    assert list(back) == ["b", "a"]
    assert all(torch.equal(back[n], given[n]) and back[n].dtype == given[n].dtype for n in given)
    back["a"] += 1  # memory of its own
    assert from_arrays(to_arrays(given), "other/") == {}


def test_non_contiguous_and_gradient_tensors() -> None:
    given = {"t": torch.arange(6.0).reshape(2, 3).T.requires_grad_()}
    assert torch.equal(from_arrays(to_arrays(given))["t"], given["t"].detach())


def test_sparse_rows_are_used_where_smaller() -> None:
    """A row of three floats and its index take 20 bytes; the dense table 120 for 10 rows."""
    record = to_sparse_arrays(tensors(), TABLES)
    assert set(record) == {"table" + INDEX, "table" + VALUES, "bias" + INDEX, "bias" + VALUES} | {
        "w",
        "scalar",
    }
    assert record["table" + INDEX].numpy().tolist() == [2, 7]
    back = from_sparse_arrays(record, template())
    assert all(torch.equal(back[n], t) for n, t in tensors().items())
    full = to_sparse_arrays(tensors(touched=tuple(range(10))), TABLES)
    assert set(full) == {"table", "bias", "w", "scalar"}


def test_untouched_table_has_no_rows() -> None:
    record = to_sparse_arrays(tensors(touched=()), TABLES)
    assert record["table" + VALUES].numpy().shape == (0, 3)
    assert torch.equal(from_sparse_arrays(record, template())["table"], torch.zeros(10, 3))


def test_a_row_that_is_nan_is_sent_and_refused() -> None:
    given = tensors()
    given["table"][4, 1] = torch.nan
    with pytest.raises(WireError, match="'table' holds NaN"):
        from_sparse_arrays(to_sparse_arrays(given, TABLES), template())


def broken(**changed: object) -> ArrayRecord:
    arrays: dict[str, object] = dict(to_sparse_arrays(tensors(), TABLES))
    for key, value in changed.items():
        name = key.replace("_index", INDEX).replace("_rows", VALUES)
        arrays.pop(name, None)
        if value is not None:
            arrays[name] = Array(np.asarray(value))
    return ArrayRecord(arrays)  # type: ignore[arg-type]


F32 = np.float32


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (broken(w=None), "'w' is missing"),
        (broken(table_rows=None), "'table' is missing"),
        (broken(extra=[1.0]), "unknown tensor 'extra'"),
        (broken(w=np.ones((3, 2), F32)), r"'w' is \(3, 2\)"),
        (broken(w=np.ones((2, 2))), "float64"),
        (broken(w=np.full((2, 2), np.inf, F32)), "infinite"),
        (broken(table=np.zeros((10, 3), F32)), "both dense and as rows"),
        (broken(table_index=[7, 2]), "must ascend"),
        (broken(table_index=[2, 2]), "must ascend"),
        (broken(table_index=[-1, 2]), "within 0..9"),
        (broken(table_index=[2, 10]), "within 0..9"),
        (broken(table_index=[2]), r"'table' is \(2, 3\)"),
        (broken(table_index=[2.0, 7.0]), "vector of int64"),
        (broken(table_index=5), "vector of int64"),
        (broken(table_rows=np.ones((2, 4), F32)), r"expected \(2, 3\)"),
        (broken(scalar=None, scalar_index=[0], scalar_rows=np.ones(1, F32)), "'scalar' is missing"),
        (broken(w=np.array(["a", "b"])), "cannot be decoded"),
    ],
)
def test_malformed_updates_are_refused(record: ArrayRecord, message: str) -> None:
    with pytest.raises(WireError, match=message):
        from_sparse_arrays(record, template())


def test_bytes_that_are_no_array() -> None:
    record = ArrayRecord({"w": Array("float32", (2,), "numpy.ndarray", b"junk")})
    with pytest.raises(WireError, match="'w' cannot be decoded"):
        from_arrays(record)
