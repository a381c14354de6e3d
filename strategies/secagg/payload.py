"""What is masked: named arrays as two vectors of numbers, with their layout in clear."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from strategies.codec import WireError
from strategies.secagg.fixed_point import FIGURES, FixedPoint, Floats, Words

Arrays = dict[str, Floats]
SECONDS = "seconds"
"""Figure: how long a node worked."""


@dataclass(frozen=True)
class Payload:
    """A node's sums: ``tensors`` of updates, and ``figures`` (weights, metrics, counts)."""

    tensors: Arrays
    figures: Arrays

    def with_seconds(self, seconds: float) -> Payload:
        """The same, with how long the node worked."""
        return Payload(self.tensors, self.figures | {SECONDS: np.asarray(seconds, np.float64)})


@dataclass(frozen=True)
class Vectors:
    """The same as numbers: (P,) of the configured modulus, and (F,) modulo 2^64."""

    tensors: Words
    figures: Words

    def plus(self, other: Vectors) -> Vectors:
        """The sum, modulo each modulus."""
        return Vectors(self.tensors + other.tensors, self.figures + other.figures)

    def minus(self, other: Vectors) -> Vectors:
        """The difference."""
        return Vectors(self.tensors - other.tensors, self.figures - other.figures)

    def to_bytes(self) -> bytes:
        """All numbers, for a hash."""
        return self.tensors.tobytes() + self.figures.tobytes()


def layout_of(payload: Payload) -> str:
    """Names and shapes in the order of the vectors; the same on all nodes, so it tells nothing."""
    return json.dumps([_shapes(payload.tensors), _shapes(payload.figures)])


def _shapes(arrays: Mapping[str, Floats]) -> list[list[object]]:
    return [[name, list(arrays[name].shape)] for name in sorted(arrays)]


def encoded(payload: Payload, number: FixedPoint, users: int) -> Vectors:
    """A node's sums over ``users`` as vectors.

    Raises:
        RangeError: naming the array of which an entry does not fit.

    """
    return Vectors(
        _vector(payload.tensors, number, users), _vector(payload.figures, FIGURES, users)
    )


def _vector(arrays: Arrays, number: FixedPoint, users: int) -> Words:
    parts = [number.encode(arrays[n], users, n).ravel() for n in sorted(arrays)]
    return np.concatenate([number.encode([], users, "")[:0], *parts])


def decoded(vectors: Vectors, layout: str, number: FixedPoint) -> Payload:
    """Named arrays of a sum.

    Raises:
        WireError: when the layout does not fit the vectors.

    """
    tensors, figures = _read(layout)
    return Payload(
        _cut(number.decode(vectors.tensors), tensors),
        _cut(FIGURES.decode(vectors.figures), figures),
    )


def sizes(layout: str) -> tuple[int, int]:
    """Lengths of the two vectors of a layout."""
    tensors, figures = (sum(_length(s) for _, s in part) for part in _read(layout))
    return tensors, figures


Shapes = list[tuple[str, tuple[int, ...]]]


def _read(layout: str) -> tuple[Shapes, Shapes]:
    try:
        tensors, figures = (
            [(str(name), tuple(int(d) for d in shape)) for name, shape in part]
            for part in json.loads(layout)
        )
    except (ValueError, TypeError) as error:
        raise WireError(f"the layout of a masked upload cannot be read: {error}") from error
    if any(d < 0 for _, shape in (*tensors, *figures) for d in shape):
        raise WireError("the layout of a masked upload has a negative dimension")
    return tensors, figures


def _length(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _cut(vector: Floats, shapes: Shapes) -> Arrays:
    stops = np.cumsum([_length(shape) for _, shape in shapes], dtype=np.int64)
    if len(vector) != (stops[-1] if len(stops) else 0):
        raise WireError(f"a masked vector of {len(vector)} numbers does not fit its layout")
    parts = np.split(vector, stops[:-1]) if len(shapes) else []
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes, parts, strict=True)}
