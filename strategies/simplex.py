"""Euclidean projection onto the probability simplex.

The nearest point of {w ≥ 0, Σ w = 1} to v is max(v - θ, 0), with the θ for which it sums to 1;
with v in falling order, θ follows from the longest beginning whose entries all lie above the θ of
that beginning. Source: Duchi et al., ICML 2008, Figure 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def project_rows(points_KU: Array) -> Array:
    """Nearest points of the simplex to the rows of ``points_KU``, each of at least one entry.

    Raises:
        ValueError: for no entries, or one that is not finite.

    """
    if not points_KU.shape[1] or not np.isfinite(points_KU).all():
        raise ValueError("a projection onto the simplex needs finite entries, at least one")
    # Moving all of a row by one number moves θ alone; near 0 it is exact to the last places.
    near_KU = points_KU - points_KU.max(axis=1, keepdims=True)
    falling_KU = -np.sort(-near_KU, axis=1)
    counts_U = np.arange(1, points_KU.shape[1] + 1)
    shifts_KU = (falling_KU.cumsum(axis=1) - 1) / counts_U
    # The condition holds for a beginning of the row, the first entry included.
    last_K = (falling_KU > shifts_KU).sum(axis=1) - 1
    shifts_K1 = np.take_along_axis(shifts_KU, last_K[:, None], axis=1)
    projected_KU: Array = np.maximum(near_KU - shifts_K1, 0)
    return projected_KU
