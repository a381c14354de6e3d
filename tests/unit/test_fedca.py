"""FedCA: axes, affinities and weights by hand; tables that wait for their users."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from conf.compose import compose
from conf.tree import ConfigError
from models.adam_rows import adam_rows
from models.mf import ITEM, USER, MatrixFactorisation
from models.types import ClientResult, History, IndividualUpdates, Samples, Tensors
from strategies.fedca import BASIS, FedCA, FedCAConfig
from strategies.mixed_tables import AGGREGATE, SAMPLES, sample_shares
from strategies.own_tables import HAS_OWN, OWN
from strategies.principal import alignment, closeness, first_columns, principal_axes

NUM_ITEMS = 19
MODEL = MatrixFactorisation(factors=4, init_std=0.5)
BASE = FedCAConfig(batch_size=8, local_epochs=2, components=2)
RNG = np.random.default_rng(0)


def samples_of(stream: int, positives: int = 5) -> Samples:
    rng = np.random.default_rng(stream)
    labels_S = np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), positives)
    return Samples(rng.integers(0, NUM_ITEMS, len(labels_S)), labels_S)


def start(strategy: FedCA) -> tuple[Tensors, Tensors]:
    """Shared parameters, and the private state that all users start from."""
    shared = strategy.init_shared(NUM_ITEMS, np.random.default_rng(1))
    return shared, strategy.start_private(NUM_ITEMS, 0, 0)


def train(strategy: FedCA, shared: Tensors, private: Tensors, *streams: int) -> ClientResult:
    return strategy.client_update(shared, private, [samples_of(s) for s in streams], RNG)


def uploads(*results: ClientResult, users: list[int] | None = None) -> IndividualUpdates:
    single = [r.individual for r in results if r.individual is not None]
    tensors = {n: torch.stack([part[n] for part in single]) for n in single[0]}
    return IndividualUpdates(np.array(users or range(len(single))), tensors)


# ---- axes ----------------------------------------------------------------------------------
def test_axes_by_hand() -> None:
    """Rows ±(3, 4) around (1, 1) vary along (0.6, 0.8) alone; the second axis is missing."""
    rows = np.array([[4.0, 5.0], [-2.0, -3.0]])
    np.testing.assert_allclose(principal_axes(rows, 2), [[0.6, 0.0], [0.8, 0.0]], atol=1e-15)
    np.testing.assert_allclose(principal_axes(-rows, 1), [[0.6], [0.8]], atol=1e-15)
    assert not principal_axes(np.ones((3, 2)), 2).any()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 12))
def test_axes_are_orthonormal_and_hold_the_greatest_variance(seed: int, rows: int) -> None:
    """Against numpy's singular value decomposition; squares of entries up to 4 round at 1e-15."""
    rows_RD = np.random.default_rng(seed).standard_normal((rows, 3))
    axes = principal_axes(rows_RD, 2)
    np.testing.assert_allclose(axes.T @ axes, np.eye(2), atol=1e-12)
    centred = rows_RD - rows_RD.mean(axis=0)
    values = np.linalg.svd(centred, compute_uv=False)
    np.testing.assert_allclose(np.linalg.norm(centred @ axes, axis=0), values[:2], rtol=1e-9)
    top = np.abs(axes).argmax(axis=0)
    assert (axes[top, [0, 1]] > 0).all()


def test_columns_point_one_way() -> None:
    """Tables along (1, 0.1) and (-0.1, 1)-ish: by the reference, not each by its own entries.

    The axis of a table along (1, -1.1) has its greatest entry in the second place; with a sign of
    its own it would be opposite to that of (1.1, -1), its near twin.
    """
    along = np.array([-2.0, 0.0, 2.0])[:, None]
    tables = np.stack([along * [1.1, -1.0], along * [1.0, -1.1]])
    reference = along * [1.0, -1.0]
    columns = first_columns(tables, reference)
    assert columns[0] @ columns[1] > 0
    # On the reference's way, (1, -1) by its first greatest entry: rising with the rows.
    length = math.hypot(1.1, 1.0)
    np.testing.assert_allclose(columns[0], [-2 * length, 0, 2 * length], atol=1e-12)


def test_closeness_by_hand() -> None:
    """Distances 3 and 0.05: 1/4, and 1/1.05 > 0.9 counts as 1; a user is 1 to itself."""
    close = closeness(np.array([[0.0, 0.0], [0.0, 3.0], [0.05, 0.0]]))
    assert close[0, 1] == 0.25
    assert close[0, 2] == 1.0
    assert (close.diagonal() == 1).all()
    assert (close == close.T).all()


def test_alignment_by_hand() -> None:
    """In three dimensions, planes xy and xz: angles 0 and 90°, mean 45°; signs and order do not
    matter. The third user has x alone, a missing axis at a right angle to everything."""
    x, y, z, none = *np.eye(3), np.zeros(3)
    bases = np.stack([np.stack(b, axis=1) for b in ([x, y], [-z, x], [x, none])])
    half = math.cos(math.pi / 4)
    expected = [[1, half, half], [half, 1, half], [half, half, half]]
    np.testing.assert_allclose(alignment(bases), expected, atol=1e-12)


# ---- the client ----------------------------------------------------------------------------
def test_local_training_is_torch_s_adam_on_the_whole_table() -> None:
    """Compact rows are exact: a row without a gradient yet has zero moments and does not move.

    float64 on both sides; some dozen steps of a few terms round at 1e-14.
    """
    rng = np.random.default_rng(2)
    items = torch.from_numpy(rng.standard_normal((NUM_ITEMS, 3)))
    user = torch.from_numpy(rng.standard_normal(3))
    batches = [samples_of(k, positives) for k, positives in enumerate((1, 2, 1, 3))]
    table, vector, loss = adam_rows(items, user, batches, 0.1)
    leaves = [torch.nn.Parameter(items.clone()), torch.nn.Parameter(user.clone())]
    adam, losses = torch.optim.Adam(leaves, lr=0.1), []
    for batch in batches:
        adam.zero_grad()
        scores = leaves[0][torch.from_numpy(batch.items_S)] @ leaves[1]
        labels = torch.from_numpy(batch.labels_S).double()
        value = functional.binary_cross_entropy_with_logits(scores, labels)
        value.backward()  # type: ignore[no-untyped-call]
        adam.step()
        losses.append(value.item())
    torch.testing.assert_close(table, leaves[0].detach(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(vector, leaves[1].detach(), rtol=1e-10, atol=1e-10)
    assert loss == pytest.approx(np.mean(losses), rel=1e-10)
    assert not torch.equal(table, items)


def test_a_user_starts_from_the_shared_table_then_from_its_own() -> None:
    strategy = FedCA(BASE, MODEL)
    shared, private = start(strategy)
    first = train(strategy, shared, private, 0, 1)
    assert first.individual is not None
    touched = np.unique(np.concatenate([samples_of(s).items_S for s in (0, 1)]))
    rest = np.setdiff1d(np.arange(NUM_ITEMS), touched)
    assert torch.equal(first.individual[ITEM][rest], shared[ITEM][rest])
    assert first.individual[SAMPLES] == 25
    assert first.private[HAS_OWN] == 1
    other = {ITEM: shared[ITEM] + 1}
    second = train(strategy, other, dict(first.private), 2, 3)
    same = np.setdiff1d(
        np.arange(NUM_ITEMS), np.concatenate([samples_of(s).items_S for s in (2, 3)])
    )
    assert torch.equal(second.private[OWN][same], first.private[OWN][same])


def test_the_server_s_table_enters_once() -> None:
    """Own rows 0, the server's 1, ρ = 0.75: rows without a sample become 0.25."""
    strategy = FedCA(dataclasses.replace(BASE, own_share=0.75), MODEL)
    shared, private = start(strategy)
    private = private | {OWN: torch.zeros(NUM_ITEMS, 4), HAS_OWN: torch.ones(())}
    received = shared | {AGGREGATE: torch.ones(NUM_ITEMS, 4)}
    result = train(strategy, received, private, 0)
    rest = np.setdiff1d(np.arange(NUM_ITEMS), samples_of(0).items_S)
    assert len(rest)
    assert (result.private[OWN][rest] == 0.25).all()
    # Ranking with it changes nothing that is kept, and has the same table.
    block = {n: t[None] for n, t in private.items()}
    history = History(np.array([0]), np.array([1]))
    scores = strategy.scores_all(received, block, history)
    torch.testing.assert_close(scores[0], torch.full((19,), 0.25 * float(private[USER].sum())))
    assert not block[OWN].any()


# ---- the server ----------------------------------------------------------------------------
def by_hand(
    tables: list[float], axes: list[list[float]], samples: list[float]
) -> IndividualUpdates:
    """Users whose tables are (value, -value) in one column."""
    items = torch.tensor([[[t], [-t]] for t in tables])
    tensors = {ITEM: items, BASIS: torch.tensor(axes)[..., None], SAMPLES: torch.tensor(samples)}
    return IndividualUpdates(np.arange(len(tables)), tensors)


def test_affinities_and_weights_by_hand() -> None:
    """Two items, D = 1, users with tables (2, -2), (2, -2) and (5, -5); 2, 1 and 1 samples.

    p = (1/2, 1/4, 1/4). The columns lie 0 apart, or 3√2: s = 1 or 1/(1 + 3√2). All axes agree, so
    c = 1 everywhere. With a = 0 and b = 1 user 0 has the affinities (3/2, 5/4, 1/4 + s); the
    last is below θ = (3/2 + 5/4 - 1) / 2 = 7/8, so its weights are (5/8, 3/8, 0). User 2 has
    (1/2 + s, 1/4 + s, 5/4) with s = 0.191: θ = (5/4 + 0.691 - 1) / 2 = 0.470, above 0.441.
    """
    config = FedCAConfig(complementarity=0.0, similarity=1.0, components=1)
    strategy = FedCA(config, MatrixFactorisation(factors=1))
    updates = by_hand([2.0, 2.0, 5.0], [[1.0], [1.0], [-1.0]], [2.0, 1.0, 1.0])
    shared = {ITEM: torch.tensor([[1.0], [-1.0]])}
    s = 1 / (1 + 3 * math.sqrt(2))
    affinities = strategy.affinities(shared, updates)
    expected = [[1.5, 1.25, 0.25 + s], [1.5, 1.25, 0.25 + s], [0.5 + s, 0.25 + s, 1.25]]
    np.testing.assert_allclose(affinities, expected, rtol=1e-6)
    both = FedCA(dataclasses.replace(config, complementarity=0.3), strategy.model)
    np.testing.assert_allclose(both.affinities(shared, updates), np.array(expected) + 0.3)
    moved, state = strategy.individual_server_update(
        shared, updates, strategy.init_server_state(shared)
    )
    # The mean by samples: 2 · 3/4 + 5 · 1/4.
    torch.testing.assert_close(moved[ITEM][:, 0], torch.tensor([2.75, -2.75]))
    assert state["round"] == 1
    waiting = strategy.downlinks(np.array([0, 1, 2, 7]))
    assert sorted(waiting) == [0, 1, 2]
    torch.testing.assert_close(waiting[0][AGGREGATE][:, 0], torch.tensor([2.0, -2.0]))
    theta = (1.25 + 0.5 + s - 1) / 2
    value = 2 * (0.5 + s - theta) + 5 * (1.25 - theta)
    torch.testing.assert_close(waiting[2][AGGREGATE][:, 0], torch.tensor([value, -value]))


def test_without_either_it_is_a_mean_by_samples() -> None:
    strategy = FedCA(dataclasses.replace(BASE, similarity=0.0, complementarity=0.0), MODEL)
    shared, private = start(strategy)
    updates = uploads(*(train(strategy, shared, private, s, s + 1) for s in (0, 2, 4)))
    moved, _ = strategy.individual_server_update(shared, updates, {"round": torch.zeros(())})
    for table in strategy.downlinks(updates.users_U).values():
        torch.testing.assert_close(table[AGGREGATE], moved[ITEM])
    assert sample_shares(updates).tolist() == [1 / 3] * 3


def test_tables_wait_until_a_later_round_makes_new_ones(tmp_path: Path) -> None:
    """Users 3 and 5, then 5 and 8; a resume after the first round forgets the second."""
    strategy = FedCA(BASE, MODEL)
    strategy.workspace = tmp_path
    shared, private = start(strategy)
    results = [train(strategy, shared, private, s, s + 1) for s in (0, 2, 4)]
    state = strategy.init_server_state(shared)
    _, state = strategy.individual_server_update(shared, uploads(*results[:2], users=[3, 5]), state)
    first = strategy.downlinks(np.array([3, 5, 8]))
    strategy.individual_server_update(shared, uploads(*results[1:], users=[5, 8]), state)
    second = strategy.evaluation_personal(np.array([3, 5, 8]))
    assert sorted(first) == [3, 5]
    assert sorted(second) == [3, 5, 8]
    assert torch.equal(first[3][AGGREGATE], second[3][AGGREGATE])
    assert not torch.equal(first[5][AGGREGATE], second[5][AGGREGATE])
    again = FedCA(BASE, MODEL)
    again.workspace = tmp_path
    again.resumed(1)
    got = again.downlinks(np.array([3, 5, 8]))
    assert sorted(got) == [3, 5]
    assert torch.equal(got[5][AGGREGATE], first[5][AGGREGATE])


CHANGES = [
    {"embedding_lr": 0.1},
    {"batch_size": 3},
    {"own_share": 0.2},
    {"similarity": 3.0},
    {"complementarity": 3.0},
    {"components": 1},
    {"server_lr": 0.5},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_every_setting_counts(change: dict[str, float]) -> None:
    """Two rounds of three users; what they and the server have at the end differs."""
    outcomes = []
    for config in (BASE, dataclasses.replace(BASE, **change)):  # type: ignore[arg-type]
        strategy = FedCA(config, MODEL)
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
        ("strategy.own_share=1.5", r"own_share must lie in 0\.\.1, got 1\.5"),
        ("strategy.complementarity=-1", r"complementarity must not be negative, got -1"),
        ("strategy.similarity=-1", r"similarity must not be negative, got -1"),
        ("strategy.components=0", r"components must be at least 1, got 0"),
        ("strategy.components=40", r"components must be at most model\.factors, 32, got 40"),
        ("strategy.embedding_lr=0", r"embedding_lr must be positive, got 0"),
        ("strategy.batch_size=0", r"batch_size must be at least 1, got 0"),
        ("model=neumf", r"needs model=mf"),
    ],
)
def test_bad_settings_are_one_line(override: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        compose(["strategy=fedca", override])
