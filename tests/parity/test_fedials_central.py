"""fedials with everybody in every round is central iALS; with a part it comes to rest there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tiny_run
import torch
from user_groups_rounds import ITEMS, USERS, cohorts_of, made_up, once, rounds

from client_app.data import load_dataset
from conf.compose import compose
from models.mf import ITEM, USER, MatrixFactorisation
from models.rng import Role, derive_rng
from models.types import IntArray, Tensors
from server_app.checkpoint import load_checkpoint
from server_app.cli_reference_rows import training_matrix
from server_app.grid import LocalGrid
from server_app.references.base import binary
from server_app.references.ials import IALSConfig, alternate
from server_app.run import run_server
from strategies.fedials import FedIALS, FedIALSConfig

pytest.importorskip("scipy.sparse")
L2, ROUNDS = 2.0, 3
FACTORS = 4
EXACT = 1e-10
"""Float64 solves of systems whose condition numbers are some hundred keep 1e-13 of a vector; a
round hands that to the next, which may grow it by a small factor."""


def settings(alpha: float, num_users: int, **changes: object) -> FedIALSConfig:
    """As the reference's: the same λ for a user and for an item."""
    chosen = {"alpha": alpha, "user_reg": L2, "item_reg": L2 / num_users, **changes}
    return FedIALSConfig(**chosen)  # type: ignore[arg-type]


def start(made: FedIALS, num_items: int) -> Tensors:
    drawn = made.init_shared(num_items, derive_rng(0, Role.INIT_SHARED))
    return {n: t.double() for n, t in drawn.items()}


def federated(
    made: FedIALS, own: Sequence[IntArray], num_items: int, cohorts: Sequence[IntArray]
) -> tuple[Tensors, Tensors]:
    """Shared parameters and private rows after rounds of these users, in float64."""
    return rounds(made, own, start(made, num_items), cohorts)


def central(
    own: Sequence[IntArray], items_ID: torch.Tensor, alpha: float, iterations: int
) -> tuple[torch.Tensor, torch.Tensor]:
    factors = items_ID.shape[1]
    config = IALSConfig(factors, L2, 1 + alpha, iterations)
    unused: npt.NDArray[np.float64] = np.zeros((len(own), factors))
    users_UD, solved_ID = alternate(once(own, len(items_ID)), unused, items_ID.numpy(), config)
    return torch.from_numpy(users_UD), torch.from_numpy(solved_ID)


@pytest.mark.parametrize("statistics", ["latest", "decaying"])
@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_everybody_in_every_round(alpha: float, statistics: str) -> None:
    """Uploads that replace those of before, or what was before at weight 0."""
    own = made_up(0.05, 0.6)
    config = settings(alpha, USERS, statistics=statistics, decay=0.0)
    made = FedIALS(config, MatrixFactorisation(FACTORS, 0.5))
    shared, private = federated(made, own, ITEMS, [np.arange(USERS)] * ROUNDS)
    users_UD, items_ID = central(own, start(made, ITEMS)[ITEM], alpha, ROUNDS)
    torch.testing.assert_close(private[USER], users_UD, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(shared[ITEM], items_ID, rtol=EXACT, atol=EXACT)


def test_movielens() -> None:
    dataset = load_dataset(compose([]))
    own = [np.unique(dataset.train_of(user)) for user in range(dataset.num_users)]
    made = FedIALS(settings(1.0, len(own)), MatrixFactorisation(8))
    shared, _ = federated(made, own, dataset.num_items, [np.arange(len(own))] * 2)
    _, items_ID = central(own, start(made, dataset.num_items)[ITEM], 1.0, 2)
    torch.testing.assert_close(shared[ITEM], items_ID, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("num_nodes", [1, 3])
@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_a_run(tmp_path: Path, alpha: float, num_nodes: int) -> None:
    """Whole runs, with messages, stores and checkpoints in float32: 6e-8 of each number.

    A solve grows that by at most the condition number of its system, and two half steps a round
    hand it on.
    """
    how = (
        f"strategy.alpha={alpha}",
        f"strategy.user_reg={L2}",
        f"strategy.item_reg={L2 / tiny_run.NUM_USERS}",
        f"federation.num_nodes={num_nodes}",
        f"federation.rounds={ROUNDS}",
    )
    cfg = tiny_run.config(
        tmp_path, "strategy=fedials", "model.factors=4", "federation.fraction=1.0", *how
    )
    result = run_server(LocalGrid(num_nodes), cfg)
    got_ID = load_checkpoint(result.folder).shared[ITEM].double()
    once_UI = binary(training_matrix(load_dataset(cfg)))
    items_ID = tiny_run.shared(cfg)[ITEM].double().numpy()
    none = np.zeros((tiny_run.NUM_USERS, 4))
    config = IALSConfig(4, L2, 1 + alpha, ROUNDS)
    users_UD, expected = alternate(once_UI, none, items_ID, config)
    spread = np.linalg.eigvalsh(users_UD.T @ users_UD + L2 * np.eye(4))
    condition = (1 + alpha) * float(spread[-1] / spread[0])
    assert condition < 100  # of G + αS + λI, as S is at most G
    expected_ID = torch.from_numpy(expected)
    off = float((got_ID - expected_ID).norm() / expected_ID.norm())
    assert off < 2 * ROUNDS * condition * 6e-8


@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_a_tenth_of_the_users_comes_to_rest_where_all_do(
    alpha: float, block_size: int | None
) -> None:
    """Scores, as vectors may be turned. 1,000 rounds are 100 of everybody, or 50 for each block.

    The slowest case, blocks with α = 3, comes closer by a factor of 250 in 500 rounds; after the
    first 500 it is 2e-4 away.
    """
    own = made_up(0.05, 0.6)
    config = settings(alpha, USERS, block_size=block_size)
    made = FedIALS(config, MatrixFactorisation(FACTORS, 0.5))
    shared, _ = federated(made, own, ITEMS, cohorts_of(0.1, 1000))
    users_UD, items_ID = central(own, start(made, ITEMS)[ITEM], alpha, 1000)
    scores_UI = shared[ITEM] @ central(own, shared[ITEM], alpha, 1)[0].T
    expected_UI = items_ID @ users_UD.T
    assert float((scores_UI - expected_UI).norm() / expected_UI.norm()) < 1e-5
