"""Fixed-point numbers modulo 2^bits, whose sums are exact.

A value x becomes the whole number round(x · 2^f), taken modulo 2^b. Scaling by a power of two is
exact in float64, so x is off by at most half a step, 2^-(f+1), and a sum over n nodes by at most
n · 2^-(f+1), whatever the values are; reading the sum as float64 adds 2^-53 of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[Any]
"""uint32 or uint64 numbers modulo 2^32 or 2^64: NumPy's own arithmetic wraps around."""
Floats = npt.NDArray[np.float64]
UNSIGNED: dict[int, Any] = {32: np.uint32, 64: np.uint64}
SIGNED: dict[int, Any] = {32: np.int32, 64: np.int64}


class RangeError(ValueError):
    """A value that does not fit; the text names the field and never the value."""


@dataclass(frozen=True)
class FixedPoint:
    """``bits`` of the modulus, ``fraction_bits``, and the largest magnitude for one user."""

    bits: int
    fraction_bits: int
    limit: float

    @property
    def step(self) -> float:
        """Difference of neighbouring numbers."""
        return 2.0**-self.fraction_bits

    def most_users(self, nodes: int) -> int:
        """Users whose sum over ``nodes`` cannot wrap around, each within ``limit``."""
        room = 2 ** (self.bits - 1) - 1 - nodes  # half a step of rounding a node, generously
        return int(room / (self.limit * 2.0**self.fraction_bits) * (1 - 2.0**-50))

    def error_bound(self, nodes: int) -> float:
        """Most that an entry of the sum of ``nodes`` is off, before it is rounded to a float."""
        return nodes * self.step / 2

    def encode(self, values: npt.ArrayLike, users: int, name: str) -> Words:
        """A node's sum over ``users`` as numbers modulo 2^bits.

        Raises:
            RangeError: where an entry is not finite, or above ``users`` times the limit.

        """
        floats: Floats = np.asarray(values, dtype=np.float64)
        # Written so that NaN is refused as well.
        if floats.size and not float(np.abs(floats).max()) <= self.limit * users:
            raise RangeError(
                f"secure aggregation: an entry of {name!r} is not within ±{self.limit:g} a user: "
                "raise privacy.secagg.limit, or lower the learning rates"
            )
        scaled = np.rint(floats * 2.0**self.fraction_bits)
        if scaled.size and not float(np.abs(scaled).max()) < 2.0 ** (self.bits - 1):
            raise RangeError(f"secure aggregation: {name!r} does not fit {self.bits} bits")
        return scaled.astype(SIGNED[self.bits]).view(UNSIGNED[self.bits])

    def decode(self, words: Words) -> Floats:
        """The values of a sum, read as signed numbers."""
        signed: npt.NDArray[Any] = words.view(SIGNED[self.bits])
        floats: Floats = signed.astype(np.float64) * self.step
        return floats


FIGURES = FixedPoint(bits=64, fraction_bits=32, limit=65536.0)
"""Of weights, metrics and counts. 65,536 a user leaves room for 32,767 users."""
