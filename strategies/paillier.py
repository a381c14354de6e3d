"""Tables of numbers under Paillier's additively homomorphic encryption, several to a ciphertext.

A product of ciphertexts mod n² decrypts to the sum of the plaintexts mod n, a power to a multiple.
That is all the server needs for plain SGD along a mean, θ <- θ - η/W · ΣG, if it avoids fractions:

* the learning rate η is inside the upload, as in FedMF's paper: a node sends η·G in fixed point,
  round(2^f · η · G), f = ``fraction_bits``;
* the division by the cohort's weight W, a whole number, is not carried out. The server holds C with
  θ = C / (2^f · m), where m, the ``multiplier``, is a plain number. A step takes m' = lcm(m, W),
  C <- C · m'/m - ΣG · m'/W. It is exact, and as long as W stays what it was, so does m. Once the
  sizes of cohorts have no common multiple below 2^h, m' is the largest multiple of m below it, at
  least 2^(h-1), and ⌊m'/W⌋ takes the place of m'/W: that step is shorter by less than W/2^(h-1) of
  itself, 1.1e-5 for 94 users.

**Slots.** A plaintext carries k signed numbers s_j as Σ s_j · 2^(B·j), which adds and multiplies
slot by slot while every |s_j| < 2^(B-1). With |θ| <= 2^v (v = ``VALUE_BITS``; a node refuses what
it decrypts beyond), a mean step of at most 2^v (a node refuses to send more a unit of weight) and
m' < 2^h (h = ``HEADROOM_BITS``):

    |C'| <= 2^f · m' · (|θ| + |mean step|) <= 2^f · (2^h - 1) · 2^(v+1) < 2^(B-1)

for slots of B = f + v + h + 2 bits,

and no sum within the step is larger. The plaintext itself is below 2^(B·k-1) in size and must stay
below n/2 >= 2^(b-2) for a key of b bits: k = (b - 1) // B.

**Precision.** Initial values and each node's sum are rounded once, by at most 2^-(f+1); the mean
step of K nodes is therefore off by at most K/W · 2^-(f+1), beside float32's own rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm, prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.types import Tensors, Update
from strategies.paillier_keys import read_private, read_public

VALUE_BITS = 8
"""Parameters, and mean steps, lie in ±2^8."""
HEADROOM_BITS = 24
"""The multiplier stays below 2^24."""
LARGEST_UNEVEN = 1 << 13
"""Users of a cohort whose size the multiplier cannot take in: the step is off by 2^-10 at most."""
MULTIPLIER, SHAPE = "multiplier", "/shape"


@dataclass(frozen=True)
class Packing:
    """Signed whole numbers in the slots of plaintexts, for keys of ``key_bits``."""

    key_bits: int
    fraction_bits: int

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"a key of {self.key_bits} bits has no room for a slot")

    @property
    def slot_bits(self) -> int:
        """B, as derived above."""
        return self.fraction_bits + VALUE_BITS + HEADROOM_BITS + 2

    @property
    def slots(self) -> int:
        """k, numbers in a plaintext."""
        return (self.key_bits - 1) // self.slot_bits

    def plaintexts(self, numbers: Sequence[int]) -> list[int]:
        """Pack signed numbers, ``slots`` at a time, into signed plaintexts."""
        parts = [numbers[at : at + self.slots] for at in range(0, len(numbers), self.slots)]
        return [sum(s << (self.slot_bits * j) for j, s in enumerate(part)) for part in parts]

    def numbers(self, plaintexts: Sequence[int], count: int) -> list[int]:
        """The first ``count`` numbers of signed plaintexts."""
        out, half, size = list[int](), 1 << (self.slot_bits - 1), 1 << self.slot_bits
        for plaintext in plaintexts:
            for _ in range(self.slots):
                low = (plaintext + half) % size - half
                out.append(low)
                plaintext = (plaintext - low) >> self.slot_bits  # noqa: PLW2901
        return out[:count]


class Paillier:
    """Encryption of tables for one key pair; the private key is read when it is first needed."""

    def __init__(self, folder: Path, fraction_bits: int, allow_weak_key: bool) -> None:
        self.folder = folder
        self.public: Any = read_public(folder, allow_weak_key)
        self.packing = Packing(self.public.n.bit_length(), fraction_bits)
        self._last: tuple[bytes, Tensors] = (b"", {})

    @cached_property
    def private(self) -> Any:
        """The private key; on nodes only."""
        return read_private(self.folder, self.public)

    # ---- nodes -----------------------------------------------------------------------------
    def encrypt(self, tensor: Tensor, bound: float, what: str) -> Tensor:
        """Ciphertexts (N, bytes) of a tensor whose entries are at most ``bound`` in size.

        Raises:
            ValueError: for an entry beyond the bound.

        """
        if not float(tensor.abs().max()) <= bound:
            raise ValueError(f"{what} leaves ±{bound:g}, the range of its encryption's slots")
        fixed = (tensor.double() * 2.0**self.packing.fraction_bits).round().long()
        plaintexts = self.packing.plaintexts(fixed.flatten().tolist())
        return self._to_tensor([self.public.raw_encrypt(m % self.public.n) for m in plaintexts])

    def seal(self, shared: Tensors) -> Tensors:
        """Initial parameters as the server holds them: ciphertexts, shapes, multiplier 1."""
        out = {MULTIPLIER: torch.ones(1, dtype=torch.int64)}
        for name, tensor in shared.items():
            out[name] = self.encrypt(tensor, 2.0**VALUE_BITS, name)
            out[name + SHAPE] = torch.tensor(tensor.shape, dtype=torch.int64)
        return out

    def open(self, shared: Tensors) -> Tensors:
        """Parameters (float32) from what the server holds; the last ones are remembered.

        Raises:
            ValueError: when a parameter has left the range that a slot has room for.

        """
        digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in shared.values())).digest()
        if digest != self._last[0]:
            scale = int(shared[MULTIPLIER][0]) << self.packing.fraction_bits
            names = [name for name in shared if name + SHAPE in shared]
            opened = {n: self._decrypt(n, shared[n], shared[n + SHAPE], scale) for n in names}
            self._last = digest, opened
        return dict(self._last[1])

    def _decrypt(self, name: str, ciphertexts: Tensor, shape: Tensor, scale: int) -> Tensor:
        sizes, n = shape.tolist(), self.public.n
        plain = [self.private.raw_decrypt(c) for c in self._to_numbers(ciphertexts)]
        signed = [m - n if m > n // 2 else m for m in plain]
        values = np.array([s / scale for s in self.packing.numbers(signed, prod(sizes))])
        if not (np.abs(values) <= 2.0**VALUE_BITS).all():
            raise ValueError(
                f"{name} leaves ±{2**VALUE_BITS}, the range of its encryption's slots, or was "
                "encrypted with another key; a lower server_lr keeps it in range"
            )
        return torch.from_numpy(values.astype(np.float32)).reshape(sizes)

    # ---- server ----------------------------------------------------------------------------
    def add(self, updates: Sequence[Update]) -> Update:
        """Sum of encrypted updates."""
        total, *others = updates
        tensors = dict(total.tensors)
        for update in others:
            tensors = {n: self._combined(t, 1, update.tensors[n], 1) for n, t in tensors.items()}
        return Update(tensors, sum(update.weight for update in updates))

    def step(self, shared: Tensors, summed: Update) -> Tensors:
        """C <- C · m'/m - ΣG · m'/W, or ⌊m'/W⌋ where that cannot be whole.

        Raises:
            ValueError: for a weight that is not whole, or too great for ⌊m'/W⌋ to be near it.

        """
        old, weight = int(shared[MULTIPLIER][0]), int(summed.weight)
        if weight != summed.weight:
            raise ValueError(f"an encrypted mean needs a whole weight, got {summed.weight}")
        new = _next_multiplier(old, weight)
        moved = {
            n: self._combined(shared[n], new // old, t, -(new // weight))
            for n, t in summed.tensors.items()
        }
        return {**shared, **moved, MULTIPLIER: torch.tensor([new], dtype=torch.int64)}

    def _combined(self, left: Tensor, times: int, right: Tensor, other: int) -> Tensor:
        """Ciphertexts of left · times + right · other."""
        square = self.public.nsquare
        pairs = zip(self._to_numbers(left), self._to_numbers(right), strict=True)
        return self._to_tensor(
            [pow(a, times, square) * pow(b, other, square) % square for a, b in pairs]
        )

    # ---- tensors ---------------------------------------------------------------------------
    @property
    def width(self) -> int:
        """Bytes of a ciphertext, a number below n²."""
        return -(-2 * self.packing.key_bits // 8)

    def _to_tensor(self, ciphertexts: Sequence[int]) -> Tensor:
        data = b"".join(int(c).to_bytes(self.width, "little") for c in ciphertexts)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(-1, self.width)

    def _to_numbers(self, ciphertexts: Tensor) -> list[int]:
        return [int.from_bytes(row.tobytes(), "little") for row in ciphertexts.numpy()]


def _next_multiplier(old: int, weight: int) -> int:
    """The smallest multiple of both, or if that is too great the largest of ``old`` alone."""
    exact, limit = lcm(old, weight), 1 << HEADROOM_BITS
    if exact < limit:
        return exact
    if weight > LARGEST_UNEVEN:
        raise ValueError(
            f"a cohort of {weight} users after ones of other sizes: the multiplier of encrypted "
            f"parameters would become {exact}, beyond 2^{HEADROOM_BITS}"
        )
    return old * ((limit - 1) // old)
