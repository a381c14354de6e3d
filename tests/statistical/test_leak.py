"""A user alone learns nothing about his held-out item, unless the negatives give it away.

A user who trains without any server has no information about his held-out item, so with
honest negatives HR@10 among 99 sampled negatives must be chance: 10 of 100 places, 0.10,
with a standard error of sqrt(0.1 * 0.9 / n) over n users. The band is three of them.

With ``negatives=exclude_heldout`` the held-out item is the only candidate that is never
pushed down; a user with an item table of his own then ranks it first. This positive
control shows that the test can see a leak, and why the default is what it is.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from client_app.data import Dataset, load_dataset
from client_app.negatives import draw_samples, excluded_items
from conf.compose import compose
from conf.tree import Config
from models.rng import Role, derive_rng
from models.types import Tensors

NUM_USERS, ROUNDS = 160, 60


def users_of(dataset: Dataset) -> np.ndarray:
    """Evenly spaced users."""
    return np.linspace(0, dataset.num_users - 1, NUM_USERS).astype(np.int64)


def train_alone(cfg: Config, dataset: Dataset, user: int, rounds: int, own_table: bool) -> float:
    """Train one user without a server; return 1.0 for a hit at 10.

    With ``own_table`` the user also applies the server's step to a table of his own.
    """
    strategy = cfg.strategy_class(cfg.strategy, cfg.model)
    shared: Tensors = strategy.init_shared(
        dataset.num_items, derive_rng(cfg.seed, Role.INIT_SHARED)
    )
    state = strategy.init_server_state(shared)
    private = strategy.init_private(derive_rng(cfg.seed, Role.INIT_PRIVATE, user))
    excluded = excluded_items(
        dataset.train_of(user), dataset.heldout_of(user), cfg.protocol.negatives
    )
    for round_ in range(1, rounds + 1):
        samples = draw_samples(
            dataset.train_of(user),
            excluded,
            dataset.num_items,
            cfg.strategy.num_negatives,
            derive_rng(cfg.seed, Role.TRAIN, user, round_, 0),
        )
        stream = derive_rng(cfg.seed, Role.STRATEGY, user, round_)
        result = strategy.client_update(shared, private, [samples], stream)
        private = result.private
        if own_table:
            shared, state = strategy.server_update(shared, result.update, state)
    block = {n: t[None] for n, t in strategy.private_parameters(private).items()}
    items = np.concatenate([[dataset.test_U[user]], dataset.test_candidates_UC[user]])[None]
    scores = strategy.model.score_candidates(shared, block, items)[0]
    return float((scores[1:] >= scores[0]).sum() < 10)


def hit_rate(overrides: list[str], rounds: int, own_table: bool) -> float:
    """HR@10 of users who each train alone."""
    cfg = compose(overrides)
    dataset = load_dataset(cfg)
    hits = [train_alone(cfg, dataset, int(u), rounds, own_table) for u in users_of(dataset)]
    return float(np.mean(hits))


BAND = 3 * sqrt(0.1 * 0.9 / NUM_USERS)


@pytest.mark.parametrize("strategy", ["fedmf", "fedavg"])
def test_alone_with_honest_negatives_is_chance(strategy: str) -> None:
    rate = hit_rate([f"strategy={strategy}"], ROUNDS, own_table=True)
    assert abs(rate - 0.10) <= BAND


def test_fedrecgel_alone_without_server_is_chance() -> None:
    rate = hit_rate(["strategy=fedrecgel"], 10, own_table=False)
    assert abs(rate - 0.10) <= BAND


def test_excluding_heldout_items_leaks_them() -> None:
    rate = hit_rate(["strategy=fedmf", "protocol.negatives=exclude_heldout"], ROUNDS, True)
    assert rate >= 0.8
