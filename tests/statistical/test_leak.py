"""A user alone learns nothing about his held-out item, unless the negatives give it away.

A user who trains without any server has no information about his held-out item, so with
honest negatives HR@10 among 99 sampled negatives must be chance: 10 of 100 places, 0.10,
with a standard error of sqrt(0.1 * 0.9 / n) over n users. The band is three of them.

With ``negatives=exclude_heldout`` the held-out item is the only candidate that is never
pushed down; a user with an item table of his own then ranks it first. This positive
control shows that the test can see a leak, and why the default is what it is. Users train
with the engine's own samples and the strategies' own update.
"""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from client_app.data import Dataset, load_dataset
from client_app.engine import draw_epochs
from conf.compose import compose
from conf.tree import Config
from models.rng import Role, derive_rng
from models.types import CohortResult, IndividualUpdates, Tensors
from strategies.base import RecStrategy

QUICKER = {"cofedrec": ("strategy.supcon_items=64",)}
"""Its contrastive loss is quadratic in the items."""
SERVER_WORKS = {"cofedrec", "fedca", "fedem"}
"""Their server takes tenths of a second a round, and here each user has one of its own."""
NAMES = [path.stem for path in (Path(__file__).parents[2] / "conf" / "strategy").glob("*.yaml")]


def chance_band(num_users: int) -> float:
    """Three standard errors of a hit rate of 0.10."""
    return 3 * sqrt(0.1 * 0.9 / num_users)


def train_alone(cfg: Config, dataset: Dataset, user: int, rounds: int) -> bool:
    """Train one user without a server; whether his held-out item is among his first ten.

    He also makes the server's step, on shared parameters of his own, and sends himself what a
    server would send him.
    """
    strategy: RecStrategy = cfg.strategy_class(cfg.strategy, cfg.model)
    shared = strategy.init_shared(dataset.num_items, derive_rng(cfg.seed, Role.INIT_SHARED))
    state, users = strategy.init_server_state(shared), np.array([user])
    private = strategy.start_private(dataset.num_items, cfg.seed, user)
    block = {name: tensor[None] for name, tensor in private.items()}
    for round_ in range(1, rounds + 1):
        (epochs,) = draw_epochs(strategy, dataset, cfg, users, round_)
        stream = derive_rng(cfg.seed, Role.STRATEGY, user, round_)
        received = shared | strategy.downlinks(users).get(user, {})
        result = strategy.cohort_update(received, block, [epochs], [stream])
        block = result.private
        shared, state = server_step(strategy, shared, state, user, result)
    received = shared | strategy.evaluation_personal(users).get(user, {})
    items = np.concatenate([[dataset.test_U[user]], dataset.test_candidates_UC[user]])[None]
    scores = strategy.score_candidates(received, block, items, dataset.history(users))[0]
    return int((scores[1:] >= scores[0]).sum()) < 10


def server_step(
    strategy: RecStrategy, shared: Tensors, state: Tensors, user: int, result: CohortResult
) -> tuple[Tensors, Tensors]:
    """The server's step from one user's update."""
    if result.individual is not None:
        updates = IndividualUpdates(np.array([user]), result.individual)
        return strategy.individual_server_update(shared, updates, state)
    summed = strategy.combined([result.update], shared)
    return strategy.server_update(shared, summed, state)


def hit_rate(num_users: int, rounds: int, *overrides: str) -> float:
    """HR@10 of evenly spaced users who each train alone."""
    cfg = compose(overrides)
    dataset = load_dataset(cfg)
    users = np.linspace(0, dataset.num_users - 1, num_users).astype(int).tolist()
    return float(np.mean([train_alone(cfg, dataset, u, rounds) for u in users]))


@pytest.mark.parametrize("strategy", ["fedmf", "fedavg"])
def test_alone_with_honest_negatives_is_chance(strategy: str) -> None:
    rate = hit_rate(160, 60, f"strategy={strategy}")
    assert abs(rate - 0.10) <= chance_band(160)


@pytest.mark.parametrize("strategy", sorted(set(NAMES) - {"fedmf", "fedavg"}))
def test_alone_every_strategy_is_at_chance(strategy: str) -> None:
    """Fewer users and rounds than above, for time: a leak is far outside all the same.

    Private tables with leaking negatives reach 0.58 in ten rounds; the band of 40 users is 0.14,
    that of 20 users 0.20.
    """
    num_users = 20 if strategy in SERVER_WORKS else 40
    rate = hit_rate(num_users, 10, f"strategy={strategy}", *QUICKER.get(strategy, ()))
    assert abs(rate - 0.10) <= chance_band(num_users)


@pytest.mark.parametrize(("strategy", "num_users"), [("fedmf", 160), ("fedrecgel", 40)])
def test_excluding_heldout_items_leaks_them(strategy: str, num_users: int) -> None:
    settings = (f"strategy={strategy}", "protocol.negatives=exclude_heldout")
    assert hit_rate(num_users, 60, *settings) >= 0.8


def test_excluding_heldout_items_gives_a_private_table_all_answers() -> None:
    """PFedRec's kind: a user alone, without any server, finds every held-out item in 60 rounds."""
    settings = ("strategy=pfedrec", "protocol.negatives=exclude_heldout")
    assert hit_rate(40, 60, *settings) == 1.0


def test_one_users_upload_shows_his_items() -> None:
    """Why user embeddings that stay on the node are not privacy by themselves.

    Row i of a user's gradient of the item GMF table is e_i times one vector, e_i = dL/ds_i,
    whose sign is the label (an item drawn as a negative is no positive). The server needs no
    more than the sign along the common line; the smaller side holds the positives.
    """
    cfg = compose([])
    dataset = load_dataset(cfg)
    strategy = cfg.strategy_class(cfg.strategy, cfg.model)
    shared = strategy.init_shared(dataset.num_items, derive_rng(0, Role.INIT_SHARED))
    for user in range(0, dataset.num_users, 23):
        private = strategy.init_private(dataset.num_items, derive_rng(0, Role.INIT_PRIVATE, user))
        (epochs,) = draw_epochs(strategy, dataset, cfg, np.array([user]), 1)
        stream = derive_rng(0, Role.STRATEGY, user, 1)
        upload = strategy.client_update(shared, private, epochs, stream).update
        table = upload.tensors["item_gmf"].double().numpy()
        touched = np.flatnonzero(table.any(axis=1))
        line = np.linalg.svd(table[touched], full_matrices=False)[2][0]
        side = table[touched] @ line > 0
        guess = touched[side if 2 * side.sum() < len(side) else ~side]
        np.testing.assert_array_equal(guess, np.unique(dataset.train_of(user)))
