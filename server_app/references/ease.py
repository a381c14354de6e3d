"""EASE^R: a linear item-item model in closed form (Steck, WWW 2019, arXiv 1905.03375)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from server_app.references.base import Reference, Scorer, UnavailableError, binary

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SLAB = 512
"""Columns of the Gram matrix that are computed at once."""
ROOM = 1.2
"""Memory needed, in item-item matrices of float64: one, and slabs of it."""
GIB = 1 << 30

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class EASEConfig:
    """Settings of :class:`EASE`."""

    l2: float = 100.0
    """λ, above 0: added to the diagonal of the Gram matrix."""
    max_gib: float | None = None
    """Memory that the fit may take, in GiB; None: what the machine has left."""

    def __post_init__(self) -> None:
        if self.l2 <= 0:
            raise ValueError(f"l2 must be above 0, got {self.l2}")


class EASE(Reference[EASEConfig]):
    """B = I − P · diag(P)⁻¹ with P = (XᵀX + λI)⁻¹ (equation 8); scores are X·B."""

    name = "ease"
    title = "EASE^R (Steck, WWW 2019)"
    Config = EASEConfig
    grid = tuple(EASEConfig(l2) for l2 in (50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0))

    def fit(self, train_UI: csr_array, seed: int) -> Scorer:
        """Weights (I, I) in float64; ``seed`` has no part in it.

        Raises:
            UnavailableError: when an item-item matrix does not fit into memory.

        """
        once_UI = binary(train_UI)
        self.check_room(once_UI.shape[1])
        weights_II = self.weights(once_UI)

        def score(users_U: npt.NDArray[np.int64]) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(once_UI[users_U] @ weights_II))

        return score

    def check_room(self, num_items: int) -> None:
        """Raise UnavailableError when the matrix of ``num_items`` squared is too large."""
        limit = self.config.max_gib
        available = available_bytes() if limit is None else limit * GIB
        needed = ROOM * 8 * num_items**2
        if needed > available:
            raise UnavailableError(
                f"ease needs {needed / GIB:.1f} GiB for {num_items} × {num_items} items in float64 "
                f"and has {available / GIB:.1f}: leave it out, or fit it on a larger machine"
            )

    def weights(self, once_UI: csr_array) -> Doubles:
        """B (I, I) with a zero diagonal, computed in place of the Gram matrix."""
        gram_II = _gram(once_UI)
        gram_II[np.diag_indices_from(gram_II)] += self.config.l2
        # The same symmetric matrix, row by row in memory: a sparse product copies any other.
        inverse_II = _inverted(gram_II).T
        inverse_II /= -np.diag(inverse_II).copy()
        np.fill_diagonal(inverse_II, 0.0)
        return inverse_II


def _gram(once_UI: csr_array) -> Doubles:
    """XᵀX (I, I), slab by slab: the sparse product of everything may be larger than the result."""
    num_items = once_UI.shape[1]
    gram_II = np.empty((num_items, num_items), order="F")
    for start in range(0, num_items, SLAB):
        part = slice(start, start + SLAB)
        gram_II[:, part] = (once_UI.T @ once_UI[:, part]).toarray()
    return gram_II


def _inverted(matrix_II: Doubles) -> Doubles:
    """Inverse of a symmetric positive definite matrix, in its own memory (Fortran order)."""
    from scipy.linalg import lapack

    factor, failed = lapack.dpotrf(matrix_II, lower=1, overwrite_a=1)
    inverse_II, failed_too = lapack.dpotri(factor, lower=1, overwrite_c=1)
    if failed or failed_too:
        raise UnavailableError("ease: XᵀX + λI is not positive definite in float64; raise ease.l2")
    for start in range(0, len(inverse_II), SLAB):
        # LAPACK wrote the lower triangle alone.
        part = slice(start, start + SLAB)
        corner = np.tril(inverse_II[part, part])
        inverse_II[part, part] = corner + np.tril(corner, -1).T
        inverse_II[part, start + SLAB :] = inverse_II[start + SLAB :, part].T
    return np.asarray(inverse_II, dtype=np.float64)


def available_bytes() -> float:
    """Memory that the system says is available; all of it where it says only that."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if "MemAvailable" in line)
    except (OSError, StopIteration):
        return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
