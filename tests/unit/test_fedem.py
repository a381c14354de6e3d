"""FedEM: the merge by hand, its training against torch's, tables that enter once."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from conf.compose import compose
from conf.tree import ConfigError
from models.elastic_merge import NAMES, ElasticRates, elastic_adam, init_adapter, merged
from models.mf import ITEM, USER, MatrixFactorisation
from models.types import ClientResult, History, IndividualUpdates, Samples, Tensors
from strategies.fedem import FedEM, FedEMConfig
from strategies.mixed_tables import AGGREGATE, SAMPLES
from strategies.own_tables import HAS_OWN, OWN

NUM_ITEMS = 19
MODEL = MatrixFactorisation(factors=4, init_std=0.5)
BASE = FedEMConfig(batch_size=8, local_epochs=2)
RNG = np.random.default_rng(0)


def samples_of(stream: int, positives: int = 3) -> Samples:
    rng = np.random.default_rng(stream)
    labels_S = np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), positives)
    return Samples(rng.integers(0, NUM_ITEMS, len(labels_S)), labels_S)


def start(strategy: FedEM) -> tuple[Tensors, Tensors]:
    """Shared parameters, and the private state that all users start from."""
    shared = strategy.init_shared(NUM_ITEMS, np.random.default_rng(1))
    return shared, strategy.start_private(NUM_ITEMS, 0, 0)


def train(strategy: FedEM, shared: Tensors, private: Tensors, *streams: int) -> ClientResult:
    return strategy.client_update(shared, private, [samples_of(s) for s in streams], RNG)


def uploads(*results: ClientResult) -> IndividualUpdates:
    single = [r.individual for r in results if r.individual is not None]
    tensors = {n: torch.stack([part[n] for part in single]) for n in single[0]}
    return IndividualUpdates(np.arange(len(single)), tensors)


def adapter_of(factors: int, dtype: torch.dtype = torch.float64) -> Tensors:
    drawn = init_adapter(factors, np.random.default_rng(3))
    return {n: t.to(dtype) for n, t in drawn.items()}


# ---- the merge -----------------------------------------------------------------------------
def test_merge_by_hand() -> None:
    """D = 2, widths 4, 2, 1, 1: q = (1, -1), g = (3, 0), so the adapter reads (1, -1, 2, 1).

    First layer (1 + 2, -1 - 2) = (3, -3), (3, 0) after ReLU; second 3 - 1 = 2; third 1 - 1 = 0,
    so ρ = σ(0) = 1/2 and the row is half way: (2, -1/2).
    """
    adapter = {
        "adapter_w0": torch.tensor([[1.0, 0, 1, 0], [0, 1, -1, 0]]),
        "adapter_b0": torch.zeros(2),
        "adapter_w1": torch.tensor([[1.0, 7.0]]),
        "adapter_b1": torch.tensor([-1.0]),
        "adapter_w2": torch.tensor([[0.5]]),
        "adapter_b2": torch.tensor([-1.0]),
    }
    own, server = torch.tensor([[1.0, -1.0]]), torch.tensor([[3.0, 0.0]])
    torch.testing.assert_close(merged(own, server, adapter), torch.tensor([[2.0, -0.5]]))
    assert torch.equal(merged(own, own, adapter), own)


def test_users_of_a_block_merge_as_each_alone() -> None:
    adapters = [init_adapter(4, np.random.default_rng(k)) for k in range(3)]
    own, server = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    block = {n: torch.stack([a[n] for a in adapters]) for n in NAMES}
    together = merged(own, server, block)
    for user, adapter in enumerate(adapters):
        # Sums of 8 float32 products of size 1.
        alone = merged(own[user], server[user], adapter)
        torch.testing.assert_close(together[user], alone, rtol=1e-5, atol=1e-6)


def test_adapter_s_draw() -> None:
    """Widths 2D, D, D/2, 1, each layer within ±1/√inputs, and not all alike."""
    drawn = init_adapter(16, np.random.default_rng(0))
    shapes = [tuple(drawn[f"adapter_w{layer}"].shape) for layer in range(3)]
    assert shapes == [(16, 32), (8, 16), (1, 8)]
    assert set(drawn) == set(NAMES)
    for layer, inputs in enumerate((32, 16, 8)):
        bound = 1 / math.sqrt(inputs)
        weights = drawn[f"adapter_w{layer}"]
        assert 0.8 * bound < weights.abs().max() <= bound
        assert drawn[f"adapter_b{layer}"].abs().max() <= bound


def test_training_is_torch_s_adam_through_merged_rows() -> None:
    """Whole tables, two optimisers, the adapter first, each step on a forward pass of its own.

    float64 on both sides; some dozen steps of a few terms round at 1e-14.
    """
    rng = np.random.default_rng(2)
    items, server = torch.from_numpy(rng.standard_normal((2, NUM_ITEMS, 4)))
    private = {USER: torch.from_numpy(rng.standard_normal(4)), **adapter_of(4)}
    batches = [samples_of(k, positives) for k, positives in enumerate((1, 2, 1, 3))]
    table, trained, loss = elastic_adam(items, server, private, batches, ElasticRates(0.1, 0.05))
    leaves: Tensors = {
        n: torch.nn.Parameter(t.clone()) for n, t in ({ITEM: items} | private).items()
    }
    of_rows = torch.optim.Adam([leaves[ITEM], leaves[USER]], lr=0.1)
    of_adapter = torch.optim.Adam([leaves[n] for n in NAMES], lr=0.05)
    losses = []
    for batch in batches:
        index, labels = torch.from_numpy(batch.items_S), torch.from_numpy(batch.labels_S).double()
        for adam in (of_adapter, of_rows):
            adam.zero_grad()
            rows = merged(leaves[ITEM], server, leaves)[index]
            value = functional.binary_cross_entropy_with_logits(rows @ leaves[USER], labels)
            value.backward()  # type: ignore[no-untyped-call]
            adam.step()
        losses.append(value.item())
    got = {ITEM: table, **trained}
    assert got.keys() == leaves.keys()
    for name, leaf in leaves.items():
        torch.testing.assert_close(got[name], leaf.detach(), rtol=1e-9, atol=1e-9)
        assert not torch.equal(got[name], ({ITEM: items} | private)[name])
    assert loss == pytest.approx(np.mean(losses), rel=1e-9)


# ---- the strategy --------------------------------------------------------------------------
def test_without_a_table_from_the_server_the_adapter_rests() -> None:
    strategy = FedEM(BASE, MODEL)
    shared, private = start(strategy)
    result = train(strategy, shared, private, 0, 1)
    assert all(torch.equal(result.private[n], private[n]) for n in NAMES)
    assert not torch.equal(result.private[USER], private[USER])
    assert result.individual is not None
    assert set(result.individual) == {ITEM, SAMPLES}
    assert torch.equal(result.individual[ITEM], result.private[OWN])
    assert result.individual[SAMPLES] == 15


def test_the_server_s_table_enters_once() -> None:
    """Rows without a sample are merged once, by the trained adapter, and so kept and uploaded.

    A ranking before the next training merges what is kept with the next table, and keeps nothing.
    """
    strategy = FedEM(BASE, MODEL)
    shared, private = start(strategy)
    own = torch.from_numpy(np.random.default_rng(5).standard_normal((NUM_ITEMS, 4))).float()
    private = private | {OWN: own, HAS_OWN: torch.ones(())}
    received = shared | {AGGREGATE: own + 1}
    result = train(strategy, received, private, 0)
    rest = np.setdiff1d(np.arange(NUM_ITEMS), samples_of(0).items_S)
    assert len(rest)
    adapter = {n: result.private[n] for n in NAMES}
    assert not all(torch.equal(adapter[n], private[n]) for n in NAMES)
    expected = merged(own, own + 1, adapter)[rest]
    torch.testing.assert_close(result.private[OWN][rest], expected)
    assert result.individual is not None
    assert torch.equal(result.individual[ITEM], result.private[OWN])
    block, history = (
        {n: t[None] for n, t in private.items()},
        History(np.zeros(1, int), np.ones(1, int)),
    )
    scores = strategy.scores_all(received, block, history)[0]
    torch.testing.assert_close(scores, merged(own, own + 1, private) @ private[USER])
    assert torch.equal(block[OWN][0], own)


def test_affinities_by_hand() -> None:
    """Tables (2, -2) and (5, -5) in one column: distance 3√2; 3 and 1 samples, α = 2."""
    strategy = FedEM(dataclasses.replace(BASE, similarity=2.0), MatrixFactorisation(factors=2))
    column = torch.tensor([[[2.0], [-2.0]], [[5.0], [-5.0]]])
    items = torch.cat([column, torch.zeros(2, 2, 1)], dim=2)
    updates = IndividualUpdates(np.arange(2), {ITEM: items, SAMPLES: torch.tensor([3.0, 1.0])})
    shared = {ITEM: items[0] / 2}
    s = 1 / (1 + 3 * math.sqrt(2))
    expected = [[2.75, 0.25 + 2 * s], [0.75 + 2 * s, 2.25]]
    np.testing.assert_allclose(strategy.affinities(shared, updates), expected, rtol=1e-6)
    alone = FedEM(dataclasses.replace(BASE, similarity=0.0), strategy.model)
    np.testing.assert_allclose(alone.affinities(shared, updates), [[0.75, 0.25]] * 2)


@pytest.mark.parametrize(
    "change",
    [{"embedding_lr": 0.01}, {"adapter_lr": 0.01}, {"batch_size": 3}, {"similarity": 0.0}],
    ids=lambda change: next(iter(change)),
)
def test_every_setting_counts(change: dict[str, float]) -> None:
    """Two rounds of three users; what they and the server have at the end differs."""
    outcomes = []
    for config in (BASE, dataclasses.replace(BASE, **change)):  # type: ignore[arg-type]
        strategy = FedEM(config, MODEL)
        shared, private = start(strategy)
        privates, state = [private] * 3, strategy.init_server_state(shared)
        for round_ in range(2):
            waiting = strategy.downlinks(np.arange(3))
            results = [
                train(strategy, shared | waiting.get(u, {}), privates[u], 10 * u + round_)
                for u in range(3)
            ]
            privates = [dict(r.private) for r in results]
            shared, state = strategy.individual_server_update(shared, uploads(*results), state)
        tables = [strategy.downlinks(np.arange(3))[u][AGGREGATE] for u in range(3)]
        outcomes.append(torch.cat([shared[ITEM], *tables, *(p[OWN] for p in privates)]))
    assert not torch.equal(*outcomes)


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("strategy.adapter_lr=0", r"adapter_lr must be positive, got 0"),
        ("strategy.similarity=-1", r"similarity must not be negative, got -1"),
        ("model.factors=7", r"needs even model\.factors, got 7"),
        ("model=neumf", r"needs model=mf"),
    ],
)
def test_bad_settings_are_one_line(override: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        compose(["strategy=fedem", override])
