"""K-means by Lloyd's iterations from a k-means++ start; all draws from the given stream.

Sources: Lloyd (IEEE Trans. Inf. Theory 1982); Arthur & Vassilvitskii (SODA 2007).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from models.types import FloatArray, IntArray

ITERATIONS = 50
Matrix = npt.NDArray[np.float64]


def kmeans(
    rows_ID: FloatArray,
    clusters: int,
    rng: np.random.Generator,
    start_KD: FloatArray | None = None,
) -> IntArray:
    """Cluster (I,) of each row, from 0; at most ``clusters`` of them, fewer where rows repeat.

    Every iteration assigns rows to the nearest centre, of equally near ones the first, and moves
    centres to the mean of their rows; one without rows stays where it is. It ends when no row
    changes its cluster, or after ``ITERATIONS``. ``start`` are centres to begin with instead,
    so that clusters keep their numbers from one call to the next.

    Raises:
        ValueError: for fewer than one cluster, or no rows.

    """
    if clusters < 1 or not len(rows_ID):
        raise ValueError(f"clusters and rows must be at least 1, got {clusters}, {len(rows_ID)}")
    points_ID = rows_ID.astype(np.float64)
    if start_KD is None:
        centres_KD = _plus_plus(points_ID, min(clusters, len(points_ID)), rng)
    else:
        centres_KD = start_KD.astype(np.float64)
    labels_I: IntArray = _distances(points_ID, centres_KD).argmin(axis=1)
    for _ in range(ITERATIONS):
        centres_KD = _means(points_ID, labels_I, centres_KD)
        before, labels_I = labels_I, _distances(points_ID, centres_KD).argmin(axis=1)
        if np.array_equal(before, labels_I):
            break
    return labels_I


def _plus_plus(points_ID: Matrix, clusters: int, rng: np.random.Generator) -> Matrix:
    """Centres among the points, each drawn by its squared distance to the nearest before it."""
    chosen = [int(rng.integers(len(points_ID)))]
    nearest_I = _distances(points_ID, points_ID[chosen])[:, 0]
    while len(chosen) < clusters and nearest_I.sum() > 0:
        cumulated_I = nearest_I.cumsum()
        at = int(np.searchsorted(cumulated_I, rng.random() * cumulated_I[-1], side="right"))
        chosen.append(min(at, len(points_ID) - 1))
        own_I = ((points_ID - points_ID[chosen[-1]]) ** 2).sum(axis=1)
        nearest_I = np.minimum(nearest_I, own_I)
    return points_ID[chosen]


def _distances(points_ID: Matrix, centres_KD: Matrix) -> Matrix:
    """Squared distances (I, K)."""
    squares_IK = -2 * points_ID @ centres_KD.T
    squares_IK += (points_ID**2).sum(axis=1)[:, None] + (centres_KD**2).sum(axis=1)
    nonnegative_IK: Matrix = np.maximum(squares_IK, 0)
    return nonnegative_IK


def _means(points_ID: Matrix, labels_I: IntArray, centres_KD: Matrix) -> Matrix:
    counts_K = np.bincount(labels_I, minlength=len(centres_KD))
    of_KI = labels_I == np.arange(len(centres_KD))[:, None]
    sums_KD = of_KI.astype(np.float64) @ points_ID
    means_KD: Matrix = np.where(
        counts_K[:, None] > 0, sums_KD / np.maximum(counts_K, 1)[:, None], centres_KD
    )
    return means_KD
