"""CoFedRec's choice of users to average: those like a core user on one cluster of items.

Source: CoFedRec (arXiv 2411.01690), user grouping by a core user, and its public code.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from models.types import FloatArray, IntArray

Vector = npt.NDArray[np.float64]


def likeness(tables_UID: FloatArray, core: int, items_R: IntArray) -> Vector:
    """Sum over the items of the cosine of a user's row and the core's (U,); 0 with a zero row."""
    rows_URD = tables_UID[:, items_R].astype(np.float64)
    norms_UR1 = np.linalg.norm(rows_URD, axis=2, keepdims=True)
    unit_URD = np.divide(rows_URD, norms_UR1, out=np.zeros_like(rows_URD), where=norms_UR1 > 0)
    sums_U: Vector = np.einsum("urd,rd->u", unit_URD, unit_URD[core])
    return sums_U


def elbow(falling_U: Vector) -> int:
    """Where a falling curve is farthest from the line through its ends; 0 on that line.

    A curve of fewer than three points, or a straight one, has no elbow. Of equally far points
    the first counts.
    """
    count = len(falling_U)
    if count < 3:
        return 0
    straight_U = np.linspace(falling_U[0], falling_U[-1], count)
    # The distance to the line is this difference times one factor for all points.
    apart_U = np.abs(falling_U - straight_U)
    rounding = 1e-12 * max(1.0, float(np.abs(falling_U).max()))
    return int(apart_U.argmax()) if apart_U.max() > rounding else 0


def group_of(likeness_U: Vector, core: int) -> IntArray:
    """Positions of the group, ascending: the core first by rank, then by likeness to the elbow."""
    order_U = np.argsort(-likeness_U, kind="stable")
    others_U = order_U[order_U != core]
    ranked_U = np.concatenate([[core], others_U])
    return np.sort(ranked_U[: elbow(likeness_U[ranked_U]) + 1])
