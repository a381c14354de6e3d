"""Every strategy of conf/strategy keeps the contract of ``strategies.base``.

Strategies are found by their yaml, so a new one is tested without an edit here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import Strategy

from conf.compose import compose
from conf.tree import build_strategy
from models.rng import Role, derive_rng
from models.types import (
    ClientResult,
    CohortResult,
    History,
    IndividualUpdates,
    Samples,
    SumOfUpdates,
    Tensors,
)
from strategies.base import RecStrategy

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.stem for path in (ROOT / "conf" / "strategy").glob("*.yaml"))
NUM_ITEMS = 41
POSITIVES = (1, 3, 40, 7, 1)
"""Positives a user: ragged, with more samples than a slice of 128 and one lone user."""

# Loop and cohort add the same numbers in another order. A sum of n float terms errs by about
# sqrt(n) units in the last place relative to its norm; with n <= 200 that is 14 · 6e-8 = 8e-7
# in float32 and 14 · 1e-16 in float64, which leaves an order of magnitude for the passes.
PRECISIONS = [(torch.float32, 1e-5), (torch.float64, 1e-10)]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def strategy(name: str) -> RecStrategy:
    built = build_strategy(compose([f"strategy={name}"]))
    assert isinstance(built, RecStrategy)
    return built


def shared_of(strategy: RecStrategy, dtype: torch.dtype = torch.float32) -> Tensors:
    drawn = strategy.init_shared(NUM_ITEMS, derive_rng(0, Role.INIT_SHARED))
    return {n: t.to(dtype) for n, t in drawn.items()}


def block_of(strategy: RecStrategy, dtype: torch.dtype = torch.float32) -> Tensors:
    """Private state of the users, as it is after some training: moments are not zero."""
    rows = [strategy.start_private(NUM_ITEMS, 0, u) for u in range(U)]
    block = {n: torch.stack([row[n] for row in rows]).to(dtype) for n in rows[0]}
    epochs_U = [[samples_of(u, round_=9)] * strategy.config.local_epochs for u in range(U)]
    return strategy.cohort_update(shared_of(strategy, dtype), block, epochs_U, rngs()).private


U = len(POSITIVES)


def samples_of(user: int, round_: int = 0, num_items: int = NUM_ITEMS) -> Samples:
    """Positives with four negatives each, so items repeat within a user."""
    rng = derive_rng(0, Role.TRAIN, user, round_)
    labels_S = np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), POSITIVES[user])
    return Samples(rng.integers(0, num_items, len(labels_S)), labels_S)


def epochs_of(strategy: RecStrategy, factor: int = 1) -> list[list[Samples]]:
    epochs = range(factor * strategy.config.local_epochs)
    return [[samples_of(u, round_=e) for e in epochs] for u in range(U)]


def rngs() -> list[np.random.Generator]:
    return [derive_rng(0, Role.STRATEGY, user, 1) for user in range(U)]


def row_of(block: Tensors, user: int) -> Tensors:
    return {n: t[user] for n, t in block.items()}


def train_user(strategy: RecStrategy, user: int) -> ClientResult:
    shared, private = shared_of(strategy), row_of(block_of(strategy), user)
    return strategy.client_update(shared, private, epochs_of(strategy)[user], rngs()[user])


def train_cohort(strategy: RecStrategy) -> CohortResult:
    shared, block = shared_of(strategy), block_of(strategy)
    return strategy.cohort_update(shared, block, epochs_of(strategy), rngs())


def uploads_of(result: ClientResult | CohortResult) -> Tensors:
    """All tensors that leave the node."""
    rows = {f"rows of {n}": t for n, t in (result.update.row_weights or {}).items()}
    return result.update.tensors | rows | (result.individual or {})


def server_step(strategy: RecStrategy, shared: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
    """The server's step after the cohort's training."""
    result = train_cohort(strategy)
    if not strategy.needs_individual_updates:
        return strategy.server_update(shared, result.update, state)
    assert result.individual is not None
    updates = IndividualUpdates(np.arange(U), result.individual)
    return strategy.individual_server_update(shared, updates, state)


def history_of() -> History:
    """Three items of each user."""
    return History(np.arange(3 * U) % NUM_ITEMS, np.full(U, 3))


def assert_close(got: Tensors, expected: Tensors, tolerance: float) -> None:
    """Difference at most ``tolerance`` of each tensor's norm."""
    assert got.keys() == expected.keys()
    for name in expected:
        assert got[name].shape == expected[name].shape
        assert got[name].dtype == expected[name].dtype
        off = float((got[name] - expected[name]).norm())
        assert off <= tolerance * float(expected[name].norm()), name


def copy_of(tensors: Tensors) -> Tensors:
    return {n: t.clone() for n, t in tensors.items()}


def assert_same(got: Tensors, expected: Tensors) -> None:
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[n], expected[n]) for n in expected)


def unchanged(call: Callable[[], object], *inputs: Tensors) -> None:
    """Run ``call`` and require that it did not touch ``inputs``."""
    before = [copy_of(tensors) for tensors in inputs]
    call()
    for tensors, old in zip(inputs, before, strict=True):
        assert_same(tensors, old)


def test_there_are_strategies() -> None:
    assert {"fedrecgel", "fedncf", "fedavg", "fedmf"} <= set(NAMES)


def test_metadata_and_page(name: str, strategy: RecStrategy) -> None:
    assert isinstance(strategy, Strategy)
    assert strategy.title.strip()
    assert 20 <= len(strategy.about) <= 80, "a line that says what it does"
    assert isinstance(strategy.needs_individual_updates, bool)
    # What the server makes for a user in a round is not in the next training request.
    assert not (strategy.personal_evaluation and strategy.folds_evaluation)
    assert isinstance(strategy.supports_partial_participation, bool)
    assert all(isinstance(exchange, str) for exchange in strategy.extra_exchanges)
    assert isinstance(strategy.config, strategy.Config)
    page = ROOT / "docs" / f"{name}.md"
    assert page.is_file(), f"docs/{name}.md is missing"
    assert len(page.read_text().split()) > 100


@pytest.mark.parametrize("factor", [1, 2], ids=["epochs", "twice-epochs"])
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS, ids=["float32", "float64"])
def test_cohort_update_is_the_sum_of_client_updates(
    strategy: RecStrategy, dtype: torch.dtype, tolerance: float, factor: int
) -> None:
    shared, block = shared_of(strategy, dtype), block_of(strategy, dtype)
    epochs_U = epochs_of(strategy, factor)
    cohort = strategy.cohort_update(shared, block, epochs_U, rngs())
    results = [
        strategy.client_update(shared, row_of(block, u), epochs_U[u], rngs()[u]) for u in range(U)
    ]
    total = SumOfUpdates(strategy.summed_template(shared))
    for result in results:
        total.add(result.update)
    expected = total.result()
    assert_close(cohort.update.tensors, expected.tensors, tolerance)
    assert cohort.update.weight == pytest.approx(expected.weight, rel=tolerance)
    assert (cohort.update.row_weights is None) == (expected.row_weights is None)
    assert_close(cohort.update.row_weights or {}, expected.row_weights or {}, tolerance)
    stacked = {n: torch.stack([r.private[n] for r in results]) for n in block}
    assert_close(dict(cohort.private), stacked, tolerance)
    uploads = [r.individual or {} for r in results]
    expected_U = {n: torch.stack([upload[n] for upload in uploads]) for n in uploads[0]}
    assert_close(cohort.individual or {}, expected_U, tolerance)
    names = set(results[0].metrics)
    assert set(cohort.metrics) == names
    for metric in names:
        summed = sum(r.metrics[metric] for r in results)
        assert cohort.metrics[metric] == pytest.approx(summed, rel=tolerance)


def test_inputs_are_not_modified(strategy: RecStrategy) -> None:
    shared, block = shared_of(strategy), block_of(strategy)
    epochs_U = epochs_of(strategy)
    items = [s.items_S.copy() for epochs in epochs_U for s in epochs]
    unchanged(lambda: strategy.cohort_update(shared, block, epochs_U, rngs()), shared, block)
    row = row_of(block, 2)
    unchanged(lambda: strategy.client_update(shared, row, epochs_U[2], rngs()[2]), shared, row)
    for samples, before in zip([s for e in epochs_U for s in e], items, strict=True):
        assert np.array_equal(samples.items_S, before)


def test_private_names_stay_out_of_shared_and_update(strategy: RecStrategy) -> None:
    shared, private = shared_of(strategy), strategy.start_private(NUM_ITEMS, 0, 0)
    assert set(strategy.private_names) <= set(private)
    result = train_user(strategy, 0)
    assert not set(private) & (set(shared) | set(uploads_of(result)))
    assert set(result.private) == set(private)


def test_a_common_start_is_common(strategy: RecStrategy) -> None:
    """Users start alike where that is said, and otherwise where nothing is drawn for them."""
    first, second = (strategy.start_private(NUM_ITEMS, 0, user) for user in (0, 1))
    if strategy.common_start:
        assert_same(first, second)
    else:
        drawn = {n for n in first if first[n].any()}
        assert all(not torch.equal(first[n], second[n]) for n in drawn)


def test_update_has_the_names_shapes_and_dtypes_of_the_shared_parameters(
    strategy: RecStrategy,
) -> None:
    shared = shared_of(strategy)
    template, users = strategy.summed_template(shared), {1: train_user(strategy, 2)}
    for count, result in [*users.items(), (U, train_cohort(strategy))]:
        update = result.update
        assert update.tensors.keys() == template.keys()
        for name, tensor in template.items():
            assert update.tensors[name].shape == tensor.shape
            assert update.tensors[name].dtype == tensor.dtype
        assert update.weight > 0
        for name, weights in (update.row_weights or {}).items():
            assert weights.shape == shared[name].shape[:1]
        assert (result.individual is not None) == strategy.needs_individual_updates
        if result.individual is not None:
            single = strategy.individual_template(shared)
            leading = () if isinstance(result, ClientResult) else (count,)
            shapes = {n: (*leading, *t.shape) for n, t in single.items()}
            assert {n: tuple(t.shape) for n, t in result.individual.items()} == shapes


def test_item_tables_lead_with_the_catalogue(strategy: RecStrategy) -> None:
    shared = shared_of(strategy)
    assert strategy.model.item_tables <= set(shared)
    assert all(len(shared[table]) == NUM_ITEMS for table in strategy.model.item_tables)


def test_training_changes_the_private_parameters(strategy: RecStrategy) -> None:
    before, after = row_of(block_of(strategy), 2), train_user(strategy, 2).private
    assert any(not torch.equal(before[n], after[n]) for n in strategy.private_names)


def test_rows_without_a_sample_have_no_update_unless_all_have(strategy: RecStrategy) -> None:
    shared, private = shared_of(strategy), row_of(block_of(strategy), 1)
    epochs = [samples_of(1, e, num_items=9) for e in range(strategy.config.local_epochs)]
    touched = np.unique(np.concatenate([s.items_S for s in epochs]))
    untouched = np.setdiff1d(np.arange(NUM_ITEMS), touched)
    personal = {n: torch.zeros_like(t) for n, t in strategy.personal_template(shared).items()}
    result = strategy.client_update(shared | personal, private, epochs, rngs()[1])
    moved = result.update.tensors
    if result.individual is not None:
        own = {n: t for n, t in result.individual.items() if n in strategy.model.item_tables}
        moved = {n: t - shared[n] for n, t in own.items()}
    if strategy.dense_updates:
        assert any(moved[table][untouched].any() for table in moved)
        return
    for table in strategy.model.item_tables & set(moved):
        assert not moved[table][untouched].any()
        assert moved[table][touched].flatten(1).any(1).all()
        if result.update.row_weights is not None:
            assert not result.update.row_weights[table][untouched].any()


def test_server_update_is_pure_and_moves_every_shared_tensor(strategy: RecStrategy) -> None:
    shared = shared_of(strategy)
    state = strategy.init_server_state(shared)
    unchanged(lambda: server_step(strategy, shared, state), shared, state)
    moved, new_state = server_step(strategy, shared, state)
    assert moved.keys() == shared.keys()
    for name, tensor in shared.items():
        assert moved[name].shape == tensor.shape
        assert moved[name].isfinite().all()
    stay = {name for name in shared if torch.equal(moved[name], shared[name])}
    if strategy.needs_individual_updates:
        assert stay < set(shared)
    else:
        assert new_state.keys() == state.keys()
        assert not stay


def test_same_streams_same_bytes(strategy: RecStrategy) -> None:
    first, second = train_cohort(strategy), train_cohort(strategy)
    assert_same(uploads_of(first), uploads_of(second))
    assert_same(dict(first.private), dict(second.private))
    assert first.update.weight == second.update.weight


@pytest.mark.parametrize("trained", [True, False])
def test_private_state_scores_the_catalogue(strategy: RecStrategy, trained: bool) -> None:
    """Users who never trained included; candidates get the same scores as in the catalogue."""
    shared, items_UC = shared_of(strategy), np.arange(U * 4).reshape(U, 4) % NUM_ITEMS
    rows = [strategy.start_private(NUM_ITEMS, 0, u) for u in range(U)]
    fresh = {n: torch.stack([row[n] for row in rows]) for n in rows[0]}
    block = block_of(strategy) if trained else fresh
    scores_UI = strategy.scores_all(shared, block, history_of())
    assert scores_UI.shape == (U, NUM_ITEMS)
    assert scores_UI.isfinite().all()
    assert not scores_UI.requires_grad
    scores_UC = strategy.score_candidates(shared, block, items_UC, history_of())
    expected_UC = scores_UI.gather(1, torch.from_numpy(items_UC))
    # A score is a sum of some dozens of products in float32, in another order.
    torch.testing.assert_close(scores_UC, expected_UC, rtol=1e-5, atol=1e-6)


def test_config_of_another_strategy_is_refused(strategy: RecStrategy) -> None:
    with pytest.raises(TypeError, match="needs a"):
        type(strategy)(object(), strategy.model)
