"""Fields of records, each checked when it is read; every failure is a :class:`WireError`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

from models.types import IntArray, Tensors
from strategies.codec import WireError, from_arrays, to_tensor

T = TypeVar("T")
R = TypeVar("R")


def section(records: Mapping[str, R], key: str) -> R:
    """The record named ``key``, or a clear error."""
    if key not in records:
        raise WireError(f"record {key!r} is missing")
    return records[key]


def get(config: Mapping[str, object], key: str, kind: type[T]) -> T:
    """The field ``key``, checked to be of type ``kind``."""
    value = config.get(key)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise WireError(f"field {key!r} must be {kind.__name__}, got {value!r}")
    return value


def pack(indices: IntArray) -> bytes:
    """Little-endian int64 bytes: a thousand users are 8 kB, not a list of objects."""
    return np.ascontiguousarray(indices, dtype="<i8").tobytes()


def unpack(data: bytes) -> IntArray:
    """Inverse of :func:`pack`."""
    if len(data) % 8:
        raise WireError("packed indices must be a multiple of 8 bytes")
    return np.frombuffer(data, dtype="<i8").astype(np.int64)


def indices(config: Mapping[str, object], key: str) -> IntArray | None:
    """The packed vector ``key``; None where there is none."""
    packed = config.get(key)
    return unpack(packed) if isinstance(packed, bytes) else None


def integers(config: Mapping[str, object], key: str) -> tuple[int, ...]:
    """The list of integers ``key``."""
    values = get(config, key, list)
    if not all(type(v) is int for v in values):
        raise WireError(f"field {key!r} must be a list of integers, got {values!r}")
    return tuple(values)


def user_index(name: str, prefix: str) -> int:
    """The user that a record is named after."""
    digits = name.removeprefix(prefix)
    if not digits.isascii() or not digits.isdigit():
        raise WireError(f"record {name!r} must end with a user's index")
    return int(digits)


def integer_vector(record: ArrayRecord, name: str) -> IntArray:
    """The array ``name``, checked to be a vector of int64."""
    vector: IntArray = to_tensor(record, name).numpy()
    if vector.ndim != 1 or vector.dtype != np.int64:
        raise WireError(f"{name} must be a vector of int64")
    return vector


def row_weights_of(record: ArrayRecord, template: Tensors) -> Tensors:
    """Row weights, a non-negative number for each row of a table of ``template``."""
    weights = from_arrays(record)
    for name, tensor in weights.items():
        if name not in template or tuple(tensor.shape) != tuple(template[name].shape[:1]):
            raise WireError(f"row weights of {name!r} do not fit its table")
        if not bool((tensor >= 0).all()) or not bool(tensor.isfinite().all()):
            raise WireError(f"row weights of {name!r} must be finite and not negative")
    return weights


def prefixed(metrics: MetricRecord, prefix: str) -> dict[str, float]:
    """The finite metrics whose name starts with ``prefix``, without it."""
    return {n.removeprefix(prefix): finite(metrics, n) for n in metrics if n.startswith(prefix)}


def finite(metrics: MetricRecord, name: str) -> float:
    """The metric ``name``, checked to be a finite number."""
    value = metrics[name]
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise WireError(f"{name} must be a finite number, got {value!r}")
    return float(value)


def seconds_of(metrics: MetricRecord) -> float:
    """A node's wall time, finite and not negative."""
    seconds = get(metrics, "seconds", float)
    if not 0 <= seconds < math.inf:
        raise WireError(f"seconds must be finite and not negative, got {seconds}")
    return seconds
