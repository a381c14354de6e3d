"""Cold start: private parameters alone are moved, and they come to rank the user's own taste."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tiny_run
import torch

from client_app.cold_start import cold_start, identity_of
from conf.tree import Config, build_strategy
from models.types import IntArray, Tensors
from strategies.base import RecStrategy

Scores = npt.NDArray[np.float64]

STRATEGIES = ("fedavg", "fedmf", "fedncf", "fedrecgel")
NUM_ITEMS, CLUSTERS = 200, 5
HISTORY, HELD_OUT, USERS = 15, 10, 30


def built(folder: Path, *overrides: str) -> tuple[Config, RecStrategy]:
    cfg = tiny_run.config(folder, *overrides)
    return cfg, build_strategy(cfg)


def scores(strategy: RecStrategy, shared: Tensors, private: Tensors) -> Scores:
    own = strategy.private_parameters({n: t[None] for n, t in private.items()})
    found: Scores = strategy.model.scores_all(shared, own)[0].double().numpy()
    return found


@pytest.mark.parametrize(
    ("strategy", "rate"),
    [("fedavg", "shared_lr"), ("fedrecgel", "local_lr"), ("fedncf", "local_lr")],
)
def test_steps_start_from_the_frozen_parameters(tmp_path: Path, strategy: str, rate: str) -> None:
    """Local epochs and mini-batches that moved a copy would depend on the copy's rate."""
    found = []
    for value in ("1e-9", "100"):
        settings = [f"strategy={strategy}", "strategy.local_epochs=3", f"strategy.{rate}={value}"]
        if strategy == "fedavg":
            settings.append("strategy.batch_size=4")
        cfg, made = built(tmp_path, *settings)
        shared = made.init_shared(NUM_ITEMS, np.random.default_rng(5))
        found.append(cold_start(made, shared, np.arange(0, 60, 6), cfg, 7, steps=2))
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_shared_parameters_stay_and_the_result_is_the_same_again(
    tmp_path: Path, strategy: str
) -> None:
    cfg, made = built(tmp_path, f"strategy={strategy}")
    shared = made.init_shared(NUM_ITEMS, np.random.default_rng(5))
    before = {name: tensor.clone() for name, tensor in shared.items()}
    history = np.array([3, 8, 21, 100])
    first = cold_start(made, shared, history, cfg, 7, steps=3)
    again = cold_start(made, shared, history[::-1].copy(), cfg, 7, steps=3)
    other = cold_start(made, shared, history, cfg, 8, steps=3)
    assert all(torch.equal(shared[name], before[name]) for name in shared)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_identities_of_raw_ids() -> None:
    """By hand: the first 8 bytes of sha256("a") are ca978112ca1bbdca, little-endian, >> 2."""
    expected = int.from_bytes(bytes.fromhex("ca978112ca1bbdca"), "little") >> 2
    assert identity_of("a") == expected
    assert 0 <= identity_of("a") < 2**62


def clustered(strategy: RecStrategy) -> Tensors:
    """Shared parameters of which the items of a cluster have like embeddings."""
    shared = strategy.init_shared(NUM_ITEMS, np.random.default_rng(1))
    rng = np.random.default_rng(2)
    for name in strategy.model.item_tables:
        width = shared[name].shape[1]
        centres = rng.standard_normal((CLUSTERS, width)) / np.sqrt(width) * 2
        noise = rng.standard_normal((NUM_ITEMS, width)) / np.sqrt(width)
        table = centres[np.arange(NUM_ITEMS) % CLUSTERS] + noise
        shared[name] = torch.from_numpy(table).to(shared[name])
    return shared


def auc(scores_I: Scores, own: IntArray, others: IntArray) -> float:
    """Share of pairs in which the user's own item is above an item of other clusters."""
    return float((scores_I[own][:, None] > scores_I[others][None, :]).mean())


@pytest.mark.parametrize("strategy", ["fedavg", "fedmf", "fedrecgel"])
def test_own_held_out_items_rank_above_others(tmp_path: Path, strategy: str) -> None:
    """MF scores of users with a cluster each: items of it that were not in the history.

    An untrained vector knows nothing, so its AUC is 1/2 on average; over 30 users with a spread
    of at most 1/2 each the mean is within 0.5 +- 3 * 0.5 / sqrt(30) = 0.27 of it.
    """
    cfg, made = built(tmp_path, f"strategy={strategy}", "model=mf")
    shared, rng = clustered(made), np.random.default_rng(3)
    trained, untrained = [], []
    for user in range(USERS):
        taste = np.flatnonzero(np.arange(NUM_ITEMS) % CLUSTERS == user % CLUSTERS)
        chosen = rng.permutation(taste)
        history, own = chosen[:HISTORY], chosen[HISTORY : HISTORY + HELD_OUT]
        others = np.setdiff1d(np.arange(NUM_ITEMS), taste)
        private = cold_start(made, shared, history, cfg, user)
        trained.append(auc(scores(made, shared, private), own, others))
        start = made.init_private(NUM_ITEMS, np.random.default_rng(user))
        untrained.append(auc(scores(made, shared, start), own, others))
    assert abs(np.mean(untrained) - 0.5) < 0.27
    assert np.mean(trained) > 0.9
    assert np.mean(np.array(trained) > np.array(untrained)) > 0.8


def test_too_few_items_are_a_clear_error(tmp_path: Path) -> None:
    cfg, made = built(tmp_path, "strategy=fedmf")
    shared = made.init_shared(3, np.random.default_rng(5))
    with pytest.raises(ValueError, match="negatives"):
        cold_start(made, shared, np.arange(3), cfg, 0)
