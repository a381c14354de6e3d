"""Named tensors to and from Flower array records, with sparse item rows where smaller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from models.tables import is_finite
from models.types import Tensors

INDEX, VALUES = "#index", "#rows"
Decoder = Callable[[ArrayRecord], Tensors]
"""Reads the tensors of a record, so that a process may decode the same ones once."""


class WireError(ValueError):
    """A message that is malformed, of the wrong shape, or not finite."""


def to_arrays(tensors: Mapping[str, Tensor], prefix: str = "") -> ArrayRecord:
    """Encode dense tensors, keeping their order."""
    return ArrayRecord({prefix + n: Array(t.detach().numpy()) for n, t in tensors.items()})


def from_arrays(record: ArrayRecord, prefix: str = "") -> Tensors:
    """Decode dense tensors whose name starts with ``prefix``.

    Raises:
        WireError: naming the tensor, when its bytes are not a numeric array.

    """
    return {n.removeprefix(prefix): to_tensor(record, n) for n in record if n.startswith(prefix)}


def to_tensor(record: ArrayRecord, name: str) -> Tensor:
    """Decode one array of a record, with memory of its own."""
    try:
        # numpy() gives read-only memory; torch needs its own copy.
        return torch.from_numpy(np.array(record[name].numpy()))
    except (KeyError, TypeError, ValueError, EOFError, OSError) as error:
        raise WireError(f"tensor {name!r} cannot be decoded: {error}") from error


def to_sparse_arrays(tensors: Tensors, tables: Iterable[str]) -> ArrayRecord:
    """Encode tensors; a table named in ``tables`` goes as (row index, row) when smaller."""
    tables, out = frozenset(tables), {}
    for name, tensor in tensors.items():
        rows, width = None, 0
        if name in tables and len(tensor):
            rows = tensor.reshape(len(tensor), -1).any(1).nonzero().flatten()
            width = tensor[0].numel() * tensor.element_size()
        if rows is not None and len(rows) * (8 + width) < len(tensor) * width:
            out[name + INDEX] = Array(rows.numpy())
            out[name + VALUES] = Array(tensor[rows].detach().numpy())
        else:
            out[name] = Array(tensor.detach().numpy())
    return ArrayRecord(out)


def from_sparse_arrays(record: ArrayRecord, template: Tensors) -> Tensors:
    """Decode against ``template``; each tensor must match its shape and dtype and be finite.

    Raises:
        WireError: naming the tensor, when one is missing, unknown, misshapen or not finite.

    """
    known = {n + s for n in template for s in ("", INDEX, VALUES)}
    if unknown := [n for n in record if n not in known]:
        raise WireError(f"unknown tensor {unknown[0]!r}; expected {sorted(template)}")
    return {name: _decode(record, name, like) for name, like in template.items()}


def _decode(record: ArrayRecord, name: str, like: Tensor) -> Tensor:
    sparse = [n for n in (name + INDEX, name + VALUES) if n in record]
    if name in record:
        if sparse:
            raise WireError(f"tensor {name!r} came both dense and as rows")
        tensor = to_tensor(record, name)
        check_tensor(name, tensor, tuple(like.shape), like.dtype)
        return tensor
    if len(sparse) < 2 or not like.dim():
        raise WireError(f"tensor {name!r} is missing")
    rows, values = to_tensor(record, name + INDEX), to_tensor(record, name + VALUES)
    if rows.dtype != torch.int64 or rows.dim() != 1:
        raise WireError(f"row indices of {name!r} must be a vector of int64")
    check_tensor(name, values, (len(rows), *like.shape[1:]), like.dtype)
    if len(rows) and (rows.diff().le(0).any() or rows[0] < 0 or rows[-1] >= len(like)):
        raise WireError(f"row indices of {name!r} must ascend within 0..{len(like) - 1}")
    return torch.zeros_like(like).index_copy_(0, rows, values)


def check_tensor(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise WireError unless the tensor has this shape and dtype, and is finite."""
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        got = f"{tuple(tensor.shape)} {tensor.dtype}"
        raise WireError(f"tensor {name!r} is {got}, expected {shape} {dtype}")
    if not is_finite(tensor):
        raise WireError(f"tensor {name!r} holds NaN or infinite values")
