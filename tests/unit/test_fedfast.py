"""FedFast: averages by hand, degenerate cases that are FedAvg's, and both engines."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.compose import compose
from conf.tree import ConfigError
from models.mf import ITEM, USER, MatrixFactorisation
from models.tables import row_lengths, row_table, scale_rows
from models.types import Samples, SumOfUpdates, Tensors, Update
from strategies.fedavg import FedAvg, FedAvgConfig
from strategies.fedfast import FedFast, FedFastConfig

CONFIG = FedFastConfig(batch_size=8, shared_lr=0.7, private_lr=0.4)
MODEL = MatrixFactorisation(factors=4, init_std=0.5)
RNG = np.random.default_rng(0)


def one(item: int, label: int = 1) -> Samples:
    return Samples(np.array([item]), np.array([label], dtype=np.float32))


def server_step(shared: Tensors, *updates: Update) -> Tensors:
    """Shared parameters after the server's step from the sum of updates."""
    strategy, total = FedFast(CONFIG, MODEL), SumOfUpdates(shared)
    for update in updates:
        total.add(update)
    return strategy.server_update(shared, total.result(), strategy.init_server_state(shared))[0]


def test_two_users_by_hand() -> None:
    """D = 2, row 0 at the origin, which user A moves to (3, -1) and user B to (0, 2).

    L1 norms 4 and 2, so the weights are 4/6 and 2/6 and the row becomes (3, -1) · 2/3 + (0, 2) / 3
    = (2, 0). Row 1 is moved by B alone, by (1, 1) from (5, 5): it becomes B's. Row 2 stays.
    """
    shared = {ITEM: torch.tensor([[0.0, 0.0], [5.0, 5.0], [7.0, 7.0]])}
    of_a = Update({ITEM: torch.tensor([[12.0, -4], [0, 0], [0, 0]])}, 5.0, {ITEM: _vector(4, 0, 0)})
    of_b = Update({ITEM: torch.tensor([[0.0, 4], [2, 2], [0, 0]])}, 50.0, {ITEM: _vector(2, 2, 0)})
    got = server_step(shared, of_a, of_b)[ITEM]
    expected = torch.tensor([[2.0, 0.0], [6.0, 6.0], [7.0, 7.0]])
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)


def test_an_upload_by_hand() -> None:
    """D = 1, q = 2, p = 1, one positive; rates 1: e = σ(2) - 1, and q moves by -e > 0.

    The upload is |-e| · -e = e², its row weight -e; p moves by -2e.
    """
    strategy = FedFast(FedFastConfig(shared_lr=1.0, private_lr=1.0), MatrixFactorisation(factors=1))
    shared, private = {ITEM: torch.tensor([[2.0], [9.0]]).double()}, {USER: torch.ones(1).double()}
    e = 1 / (1 + math.exp(-2)) - 1
    result = strategy.client_update(shared, private, [one(0)], RNG)
    assert result.update.tensors[ITEM].flatten().tolist() == pytest.approx([e * e, 0], rel=1e-12)
    assert result.update.row_weights is not None
    assert result.update.row_weights[ITEM].tolist() == pytest.approx([-e, 0], rel=1e-12)
    assert result.private[USER].item() == pytest.approx(1 - 2 * e, rel=1e-12)


def test_a_lone_user_s_table_becomes_the_shared_one() -> None:
    """One user has all the weight of the rows it moved, as in FedAvg by rows."""
    shared, private = drawn()
    epochs = [samples_of(0, 7), samples_of(1, 7)]
    update = FedFast(CONFIG, MODEL).client_update(shared, private, epochs, RNG).update
    fedavg = FedAvg(
        FedAvgConfig(batch_size=8, shared_lr=0.7, private_lr=0.4, weighting="users"), MODEL
    )
    moved = fedavg.client_update(shared, private, epochs, RNG).update.tensors[ITEM]
    got = server_step(shared, update)[ITEM]
    torch.testing.assert_close(got, shared[ITEM] + moved, rtol=1e-12, atol=1e-12)


def test_users_who_move_a_row_equally_far_have_equal_weight() -> None:
    """Then the mean is FedAvg's over the users that touched the row."""
    shared = {ITEM: torch.zeros(1, 2).double()}
    ways = [torch.tensor([[1.0, -2.0]]), torch.tensor([[-3.0, 0.0]]), torch.tensor([[1.5, 1.5]])]
    updates = [Update({ITEM: 3 * w.double()}, 1.0, {ITEM: _vector(3).double()}) for w in ways]
    mean = torch.stack(ways).double().mean(0)
    torch.testing.assert_close(server_step(shared, *updates)[ITEM], mean, rtol=1e-12, atol=1e-12)


finite = st.floats(-1e3, 1e3, width=32)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=6))
def test_the_new_row_lies_among_the_users_rows(moves: list[tuple[float, float]]) -> None:
    """A mean with weights that sum to 1 lies within the users' entries, in each column.

    A column is off by the rounding of a few float64 products of up to 2e3 · 1e3 over norms that
    may be as small as an entry, relative 1e-15 each.
    """
    shared = {ITEM: torch.zeros(1, 2).double()}
    rows = [torch.tensor([move]).double() for move in moves]
    updates = [
        Update({ITEM: scale_rows(r, row_lengths(r))}, 1.0, {ITEM: row_lengths(r)}) for r in rows
    ]
    got = server_step(shared, *updates)[ITEM]
    moving = [r for r in rows if r.any()] or [torch.zeros(1, 2).double()]
    low, high = torch.stack(moving).amin(0), torch.stack(moving).amax(0)
    slack = 1e-12 * torch.maximum(low.abs(), high.abs())
    assert bool((got >= low - slack).all())
    assert bool((got <= high + slack).all())


def test_a_tiny_movement_is_no_division_by_zero() -> None:
    """The smallest float32 there is: its square is 0, its inverse infinite."""
    tiny = torch.full((1, 1), 1e-45)
    shared = {ITEM: torch.ones(1, 1)}
    update = Update({ITEM: scale_rows(tiny, row_lengths(tiny))}, 1.0, {ITEM: row_lengths(tiny)})
    assert server_step(shared, update)[ITEM].item() == 1.0


def test_other_parameters_are_averaged_by_samples() -> None:
    """Weights 1 and 3, movements 4 and 8: (4 + 24) / 4 = 7."""
    shared = {ITEM: torch.zeros(1, 1), "layer": torch.zeros(1)}
    none = {ITEM: _vector(0)}
    updates = [
        Update({ITEM: torch.zeros(1, 1), "layer": n * torch.tensor([moved])}, n, none)
        for n, moved in ((1.0, 4.0), (3.0, 8.0))
    ]
    got = server_step(shared, *updates)
    assert got["layer"].item() == 7.0
    assert got[ITEM].item() == 0.0


def test_without_row_weights_there_is_no_mean() -> None:
    with pytest.raises(ValueError, match="row weights"):
        server_step({ITEM: torch.zeros(1, 1)}, Update({ITEM: torch.ones(1, 1)}, 1.0))


@pytest.mark.parametrize("sparse", [False, True])
def test_row_helpers(sparse: bool) -> None:
    values = torch.tensor([[1.0, -2.0], [0.0, 4.0]])
    table = row_table(torch.tensor([2, 0]), values, 3 if sparse else 2 + 1)
    table = table if sparse else table.to_dense()
    assert row_lengths(table).tolist() == [4.0, 0.0, 3.0]
    scaled = scale_rows(table, torch.tensor([10.0, 20.0, 30.0]))
    assert scaled.is_sparse == sparse
    assert scaled.to_dense().tolist() == [[0.0, 40.0], [0.0, 0.0], [30.0, -60.0]]


@pytest.mark.parametrize(
    "change", [{"shared_lr": 0.1}, {"private_lr": 0.1}, {"batch_size": 3}, {"server_lr": 0.5}]
)
def test_every_setting_counts(change: dict[str, float]) -> None:
    shared, private = drawn()
    strategies = (
        FedFast(CONFIG, MODEL),
        FedFast(dataclasses.replace(CONFIG, **change), MODEL),  # type: ignore[arg-type]
    )
    first, second = (
        s.server_update(
            shared, s.client_update(shared, private, [samples_of(0, 7)], RNG).update, {}
        )[0][ITEM]
        for s in strategies
    )
    assert not torch.equal(first, second) or change == {"private_lr": 0.1}
    if "private_lr" in change:
        epochs = [samples_of(0, 7)]
        users = [s.client_update(shared, private, epochs, RNG).private[USER] for s in strategies]
        assert not torch.equal(*users)


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("strategy.batch_size=0", r"strategy\.batch_size must be at least 1, got 0"),
        ("strategy.shared_lr=0", r"strategy\.shared_lr must be positive, got 0"),
        ("strategy.private_lr=-1", r"strategy\.private_lr must be positive, got -1"),
    ],
)
def test_bad_settings_are_one_line(override: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        compose(["strategy=fedfast", override])


def _vector(*values: float) -> torch.Tensor:
    return torch.tensor([float(v) for v in values])


def samples_of(stream: int, positives: int) -> Samples:
    rng = np.random.default_rng(stream)
    labels_S = np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), positives)
    return Samples(rng.integers(0, 19, len(labels_S)), labels_S)


def drawn() -> tuple[Tensors, Tensors]:
    rng = np.random.default_rng(1)
    shared, private = MODEL.init_shared(19, rng), MODEL.init_private(19, rng)
    return {n: t.double() for n, t in shared.items()}, {n: t.double() for n, t in private.items()}
