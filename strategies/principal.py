"""Principal components of item tables, in a sign that does not hang on the library's.

FedCA (arXiv 2406.03933) compares users by the first principal component of their tables and by
the angles between the subspaces of their training items' rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
NEGLIGIBLE = 1e-10
"""Share of the greatest variance below which a direction has none: float32 rows have 1e-14."""


def principal_axes(rows_RD: npt.NDArray[np.floating], count: int) -> Array:
    """The first principal axes (D, count) of rows, orthonormal, by falling variance.

    Where rows vary in fewer directions the missing axes are zero. The entry of greatest
    absolute value of an axis, the first of equals, is positive.
    """
    centred_RD = rows_RD.astype(np.float64) - rows_RD.mean(axis=0, dtype=np.float64)
    variances_D, axes_DD = np.linalg.eigh(centred_RD.T @ centred_RD)
    axes_DK, variances_K = axes_DD[:, ::-1][:, :count], variances_D[::-1][:count]
    places_K = np.abs(axes_DK).argmax(axis=0)
    signs_K = np.sign(axes_DK[places_K, np.arange(axes_DK.shape[1])])
    present_K = variances_K > NEGLIGIBLE * max(variances_D[-1], np.finfo(np.float64).tiny)
    found_DK: Array = axes_DK * np.where(present_K, signs_K, 0.0)
    return found_DK


def first_columns(
    tables_UID: npt.NDArray[np.floating], reference_ID: npt.NDArray[np.floating]
) -> Array:
    """Each user's centred table along its first principal axis (U, I).

    An axis points the way of the reference table's, where the two are not orthogonal: with a
    sign of its own for each, two users with nearly the same table could be opposites.
    """
    reference_D = principal_axes(reference_ID, 1)[:, 0]
    columns = list[Array]()
    for table_ID in tables_UID:
        axis_D = principal_axes(table_ID, 1)[:, 0]
        axis_D = -axis_D if axis_D @ reference_D < 0 else axis_D
        wide_ID = table_ID.astype(np.float64)
        columns.append((wide_ID - wide_ID.mean(axis=0)) @ axis_D)
    return np.stack(columns)


def closeness(columns_UI: Array) -> Array:
    """1 / (1 + Euclidean distance) of each two rows (U, U); from 0.9 on it counts as 1."""
    squares_U = np.square(columns_UI).sum(axis=1)
    squares_UU = squares_U[:, None] + squares_U - 2 * (columns_UI @ columns_UI.T)
    np.fill_diagonal(squares_UU, 0)
    close_UU = 1 / (1 + np.sqrt(np.maximum(squares_UU, 0)))
    return np.where(close_UU >= 0.9, 1.0, close_UU)


def alignment(bases_UDK: npt.NDArray[np.floating]) -> Array:
    """Cosine of the mean principal angle of each two users' subspaces (U, U).

    The cosines of the principal angles are the singular values of the product of two
    orthonormal bases; a zero column of a basis is at a right angle to everything.
    """
    bases = bases_UDK.astype(np.float64)
    cosines = [
        np.linalg.svd(np.einsum("dk,udl->ukl", own_DK, bases), compute_uv=False) for own_DK in bases
    ]
    angles_UUK = np.arccos(np.clip(np.stack(cosines), 0, 1))
    aligned_UU: Array = np.cos(angles_UUK.mean(axis=2))
    return (aligned_UU + aligned_UU.T) / 2
