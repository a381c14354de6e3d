"""Named tensors to and from Flower array records, with sparse item rows where smaller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord

from models.types import Tensors

INDEX, VALUES = "#index", "#rows"


class WireError(ValueError):
    """A message that is malformed, of the wrong shape, or not finite."""


def to_arrays(tensors: Mapping[str, torch.Tensor], prefix: str = "") -> ArrayRecord:
    """Encode dense tensors, keeping their order."""
    return ArrayRecord({prefix + n: Array(t.detach().numpy()) for n, t in tensors.items()})


def from_arrays(record: ArrayRecord, prefix: str = "") -> Tensors:
    """Decode dense tensors whose name starts with ``prefix``."""
    # numpy() gives read-only memory; torch needs its own copy.
    return {
        n.removeprefix(prefix): torch.from_numpy(np.array(a.numpy()))
        for n, a in record.items()
        if n.startswith(prefix)
    }


def to_sparse_arrays(tensors: Tensors, tables: Iterable[str]) -> ArrayRecord:
    """Encode tensors; a table named in ``tables`` goes as (row index, row) when smaller."""
    tables, out = frozenset(tables), {}
    for name, tensor in tensors.items():
        rows = tensor.flatten(1).any(1).nonzero().flatten() if name in tables else None
        width = tensor[0].numel() * tensor.element_size() if tensor.dim() and len(tensor) else 0
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


def _decode(record: ArrayRecord, name: str, like: torch.Tensor) -> torch.Tensor:
    if name in record:
        tensor = torch.from_numpy(np.array(record[name].numpy()))
        _check(name, tensor, tuple(like.shape), like.dtype)
        return tensor
    if name + INDEX not in record or name + VALUES not in record:
        raise WireError(f"tensor {name!r} is missing")
    rows = torch.from_numpy(np.array(record[name + INDEX].numpy()))
    values = torch.from_numpy(np.array(record[name + VALUES].numpy()))
    _check(name, values, (len(rows), *like.shape[1:]), like.dtype)
    if rows.dtype != torch.int64 or rows.dim() != 1:
        raise WireError(f"row indices of {name!r} must be a vector of int64")
    if len(rows) and (rows.diff().le(0).any() or rows[0] < 0 or rows[-1] >= len(like)):
        raise WireError(f"row indices of {name!r} must ascend within 0..{len(like) - 1}")
    return torch.zeros_like(like).index_copy_(0, rows, values)


def _check(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        got = f"{tuple(tensor.shape)} {tensor.dtype}"
        raise WireError(f"tensor {name!r} is {got}, expected {shape} {dtype}")
    if not bool(torch.isfinite(tensor).all()):
        raise WireError(f"tensor {name!r} holds NaN or infinite values")
