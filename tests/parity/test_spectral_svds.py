"""fedspectral's subspace and singular values are those of scipy's sparse SVD of the same matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.linalg import subspace_angles
from scipy.sparse import csr_array, diags_array
from scipy.sparse.linalg import svds
from user_groups_rounds import ITEMS, cohorts_of, made_up, once, rounds

from client_app.data import load_dataset
from conf.compose import compose
from models.mf import ITEM, MatrixFactorisation
from models.rng import Role, derive_rng
from models.spectral import singular_values
from models.types import FloatArray, IntArray, Tensors
from strategies.fedspectral import RAYLEIGH, FedSpectral, FedSpectralConfig

FACTORS = 4
LARGEST_ANGLE = 1e-3
# Shared parameters and uploads are float32: 6e-8 a term, of which a value sums some hundred.
VALUES = 1e-5


def matrix(own: Sequence[IntArray], num_items: int, config: FedSpectralConfig) -> csr_array:
    """D_u^-a X D_i^-b, as it is usually written."""
    once_UI = once(own, num_items)
    lengths_U = np.maximum(once_UI.sum(axis=1), 1) ** -config.user_exponent
    counts_I = np.maximum(once_UI.sum(axis=0), 1) ** -config.item_exponent
    return csr_array(diags_array(lengths_U) @ once_UI @ diags_array(counts_I))


def trained(
    made: FedSpectral, own: Sequence[IntArray], num_items: int, cohorts: Sequence[IntArray]
) -> Tensors:
    """The shared parameters after rounds of these users."""
    start = made.init_shared(num_items, derive_rng(0, Role.INIT_SHARED))
    return rounds(made, own, start, cohorts)[0]


def assert_svd(shared: Tensors, matrix_UI: csr_array, factors: int) -> None:
    _, values_D, right_DI = svds(matrix_UI, k=factors, random_state=0)
    angles: FloatArray = subspace_angles(shared[ITEM].double().numpy(), right_DI.T)
    assert angles.max() < LARGEST_ANGLE
    found_D = singular_values(shared[RAYLEIGH]).numpy()
    np.testing.assert_allclose(found_D, np.sort(values_D)[::-1], rtol=VALUES)


# What follows the four groups is below 0.6 of them in σ, 0.36 in σ²: with everybody in every round
# 20 rounds leave 0.36^20 = 1e-9 of the first angle's tangent, and what float32 rounds. A tenth of
# the users needs some ten rounds for one of these.
@pytest.mark.parametrize(("fraction", "count"), [(1.0, 20), (0.1, 200)])
@pytest.mark.parametrize("exponent", [0.0, 0.25, 0.5])
def test_groups_of_users(exponent: float, fraction: float, count: int) -> None:
    config = FedSpectralConfig(user_exponent=0.5, item_exponent=exponent)
    own, made = made_up(0.03, 0.7), FedSpectral(config, MatrixFactorisation(factors=FACTORS))
    shared = trained(made, own, ITEMS, cohorts_of(fraction, count))
    matrix_UI = matrix(own, ITEMS, config)
    strongest = np.linalg.svd(matrix_UI.toarray(), compute_uv=False)
    assert strongest[FACTORS] < 0.6 * strongest[FACTORS - 1]  # the gap that is spoken of above
    assert_svd(shared, matrix_UI, FACTORS)


def test_movielens() -> None:
    """The two directions that stand out of MovieLens-100K, everybody in every round."""
    dataset, config = load_dataset(compose([])), FedSpectralConfig()
    own = [np.unique(dataset.train_of(user)) for user in range(dataset.num_users)]
    made = FedSpectral(config, MatrixFactorisation(factors=2))
    everybody = np.arange(dataset.num_users)
    shared = trained(made, own, dataset.num_items, [everybody] * 15)
    assert_svd(shared, matrix(own, dataset.num_items, config), 2)
