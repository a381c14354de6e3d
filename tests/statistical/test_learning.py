"""What training reaches on real data, in stated bands, through the in-process grid.

Bands come from runs over three seeds and leave room for other seeds, not for defects: the
exactness of the algorithm is what ``tests/parity`` proves. A hit rate p over n users has a
standard error of sqrt(p(1 - p)/n).
"""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch
from torch import Tensor

from client_app.data import load_dataset
from client_app.evaluation import evaluate
from conf.compose import compose
from models.rng import Role, derive_rng
from models.types import IntArray
from server_app.grid import LocalGrid
from server_app.results import RunResult
from server_app.run import run_server

HIT = "test/sampled/hr@10"
SEEDS = (0, 1, 2)


def trained(folder: Path, *overrides: str) -> RunResult:
    cfg = compose([f"output={folder}", *overrides])
    return run_server(LocalGrid(cfg.federation.num_nodes), cfg)


def untrained(strategy_name: str) -> float:
    """HR@10 of the initial parameters, ranked like any others."""
    cfg = compose([f"strategy={strategy_name}"])
    dataset = load_dataset(cfg)
    strategy = cfg.strategy_class(cfg.strategy, cfg.model)
    shared = strategy.init_shared(dataset.num_items, derive_rng(cfg.seed, Role.INIT_SHARED))

    def scores(users: IntArray) -> Tensor:
        rngs = [derive_rng(cfg.seed, Role.INIT_PRIVATE, int(user)) for user in users]
        private = [
            strategy.private_parameters(strategy.init_private(dataset.num_items, rng))
            for rng in rngs
        ]
        block = {n: torch.stack([p[n] for p in private]) for n in private[0]}
        scores_UI: Tensor = strategy.model.scores_all(shared, block)
        return scores_UI

    everyone = np.arange(dataset.num_users)
    sums = evaluate(scores, dataset, everyone, (10,), full=True, block=64)
    return sums.metrics[HIT] / sums.counts[HIT]


@pytest.mark.parametrize("strategy", ["fedavg", "fedmf"])
def test_matrix_factorisations_learn_movielens(tmp_path: Path, strategy: str) -> None:
    """Better than the untrained model by three standard errors of the difference."""
    before = untrained(strategy)
    result = trained(tmp_path, f"strategy={strategy}")
    after, n = result.metrics[HIT], result.counts[HIT]
    error = sqrt((before * (1 - before) + after * (1 - after)) / n)
    assert after - before > 3 * error


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("strategy", ["fedrecgel", "fedncf"])
def test_neumf_learns_movielens_in_the_papers_protocol(tmp_path: Path, strategy: str) -> None:
    """Mean HR@10 of three seeds is at least 0.62; popularity is 0.468 on the same split."""
    runs = [
        trained(tmp_path, "protocol=paper", f"strategy={strategy}", f"seed={s}", f"name=s{s}")
        for s in SEEDS
    ]
    assert mean(run.metrics[HIT] for run in runs) >= 0.62
    for run in runs:
        assert run.popularity is not None
        # Ties lost by the positive: 441 of 943 users.
        assert run.popularity[HIT] == pytest.approx(441 / 943)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_papers_filmtrust_experiment(tmp_path: Path, shared_data: Path) -> None:
    """Each seed's HR@10 lies in 0.905 to 0.930 and its NDCG@10 in 0.74 to 0.84.

    NDCG has the wider band because the round is chosen by HR alone. Popularity ranks at
    0.913 / 0.823 on the same split, so the band says that training works, not that it wins.
    """
    path = shared_data / "filmtrust" / "filmtrust-ratings.txt"
    for seed in SEEDS:
        run = trained(
            tmp_path, "experiment=paper_filmtrust", f"dataset.path={path}", f"seed={seed}"
        )
        assert 0.905 <= run.metrics[HIT] <= 0.930
        assert 0.74 <= run.metrics[HIT.replace("hr", "ndcg")] <= 0.84
