"""Gaussian noise: repeatable for simulations, from the operating system for deployments.

A guarantee holds against whoever does not know the noise. In a simulation it follows from the
run's seed, as everything does. In a deployment every node knows the seed, so numbers come from
the operating system (``os.urandom``) and are transformed by Box & Muller (1958).

Both are finite decimals where the theory has real numbers: floating-point noise can say something
of the number it was added to (Mironov, CCS 2012), which is not accounted for.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from models.rng import Role, derive_rng
from models.types import Tensors

Normals = npt.NDArray[np.float64]


class NoiseSource(Protocol):
    """Where standard normal numbers come from."""

    def normals(self, count: int) -> Normals:
        """So many independent standard normal numbers."""


class SeededNoise:
    """Follows from seed, role and indices, such as user and round."""

    def __init__(self, seed: int, role: Role, *indices: int) -> None:
        self._rng = derive_rng(seed, role, *indices)

    def normals(self, count: int) -> Normals:
        """The next numbers of the stream."""
        return self._rng.standard_normal(count)


class SystemNoise:
    """From the operating system's generator; never the same."""

    def normals(self, count: int) -> Normals:
        """Box-Muller transform of uniforms of 53 bits."""
        half = (count + 1) // 2
        uniforms = system_uniforms(2 * half)
        # 1 - u lies in (0, 1]: its logarithm is finite.
        radius, angle = np.sqrt(-2 * np.log1p(-uniforms[:half])), 2 * np.pi * uniforms[half:]
        pairs = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))
        drawn: Normals = pairs[:count]
        return drawn


def system_uniforms(count: int) -> Normals:
    """Uniform numbers in [0, 1), multiples of 2⁻⁵³, from the operating system."""
    words = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def gaussian_noise(like: Tensors, std: float, source: NoiseSource) -> Tensors:
    """Independent noise of mean zero for each entry of the tensors, in the order of names."""
    drawn = {}
    for name, tensor in sorted(like.items()):
        numbers = std * source.normals(tensor.numel())
        drawn[name] = torch.from_numpy(numbers).reshape(tensor.shape).to(tensor.dtype)
    return drawn
