"""A user's private tensors as one row of numbers, in a layout fixed for a run."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from models.types import Tensors

RowBlock = npt.NDArray[np.floating[Any]]
"""Rows of a block of users (U, P), little-endian float32 or float64."""

DTYPES = {torch.float32: "<f4", torch.float64: "<f8"}


@dataclass(frozen=True)
class RowLayout:
    """Names and shapes of a user's private tensors, in the order they lie in a row."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str

    @classmethod
    def of(cls, private: Tensors) -> RowLayout:
        """Layout of one user's tensors, which must share one dtype, float32 or float64.

        Raises:
            ValueError: for no tensors, or another or a mixed dtype.

        """
        dtypes = {tensor.dtype for tensor in private.values()}
        if len(dtypes) != 1 or not dtypes <= DTYPES.keys():
            found = ", ".join(sorted(str(d) for d in dtypes)) or "none"
            raise ValueError(f"private tensors must all be float32 or all float64, got {found}")
        shapes = tuple(tuple(tensor.shape) for tensor in private.values())
        return cls(tuple(private), shapes, DTYPES[dtypes.pop()])

    @property
    def width(self) -> int:
        """Numbers in a row (P)."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def row_bytes(self) -> int:
        """Bytes in a row."""
        return self.width * np.dtype(self.dtype).itemsize

    def to_json(self) -> str:
        """Text form, stored with the run; equal layouts give equal text."""
        tensors = list(zip(self.names, self.shapes, strict=True))
        return json.dumps({"dtype": self.dtype, "tensors": tensors})

    @classmethod
    def from_json(cls, text: str) -> RowLayout:
        """Inverse of :meth:`to_json`."""
        stored = json.loads(text)
        names = tuple(name for name, _ in stored["tensors"])
        shapes = tuple(tuple(shape) for _, shape in stored["tensors"])
        return cls(names, shapes, stored["dtype"])

    def pack(self, block: Tensors) -> RowBlock:
        """Tensors with a leading user dimension as rows (U, P).

        Raises:
            ValueError: naming the tensor that is missing or does not fit the layout.

        """
        if set(block) != set(self.names):
            raise ValueError(f"private tensors are {sorted(block)}, expected {sorted(self.names)}")
        parts = [self._part(block, n, s) for n, s in zip(self.names, self.shapes, strict=True)]
        return np.concatenate(parts, axis=1)

    def _part(self, block: Tensors, name: str, shape: tuple[int, ...]) -> RowBlock:
        tensor = block[name]
        if tuple(tensor.shape[1:]) != shape or DTYPES.get(tensor.dtype) != self.dtype:
            got = f"{tuple(tensor.shape[1:])} {tensor.dtype}"
            raise ValueError(f"private tensor {name!r} is {got}, expected {shape} {self.dtype}")
        rows: RowBlock = tensor.detach().cpu().numpy().astype(self.dtype, copy=False)
        return rows.reshape(len(tensor), math.prod(shape))

    def unpack(self, rows: RowBlock) -> Tensors:
        """Inverse of :meth:`pack`; the tensors have memory of their own."""
        block, start = {}, 0
        native = np.dtype(self.dtype).newbyteorder("=")
        for name, shape in zip(self.names, self.shapes, strict=True):
            stop = start + math.prod(shape)
            part = np.array(rows[:, start:stop], dtype=native)
            block[name] = torch.from_numpy(part.reshape(len(rows), *shape))
            start = stop
        return block

    def from_bytes(self, data: bytes) -> RowBlock:
        """Rows (U, P) of concatenated stored rows, read-only."""
        return np.frombuffer(data, dtype=self.dtype).reshape(-1, self.width)
