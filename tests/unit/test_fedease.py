"""FedEASE against hand-derived numbers: pairs counted once, the closed form, scores."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tiny_run
import torch
from hypothesis import given
from hypothesis import strategies as st

from conf.tree import ConfigError, remarks
from models import ease as ease_module
from models import gram as gram_module
from models.ease import COUNTED, HISTORY, WEIGHTS, ItemWeights, as_bits, from_bits
from models.gram import ease_weights, gram, item_pairs, num_pairs, places, shift_of
from models.mf import MatrixFactorisation
from models.types import History, Samples, Tensors, Update
from server_app.grid import LocalGrid
from server_app.run import run_server
from server_app.storable import check_storable
from strategies.fedease import COUNTS, PAIRS, ROUND, UNSOLVED, FedEASE, FedEASEConfig

NUM_ITEMS = 30
RNG = np.random.default_rng(0)


def samples(*positives: int) -> Samples:
    """Each positive with a negative, which the method does not use."""
    items_S = np.array([item for p in positives for item in (p, (p + 1) % NUM_ITEMS)])
    return Samples(items_S, np.tile(np.array([1, 0], dtype=np.float32), len(positives)))


def made(top_k: int | None = None, **settings: object) -> FedEASE:
    return FedEASE(FedEASEConfig(**settings), ItemWeights(top_k))  # type: ignore[arg-type]


def start(strategy: FedEASE, num_items: int = NUM_ITEMS) -> tuple[Tensors, Tensors, Tensors]:
    shared = strategy.init_shared(num_items, RNG)
    return shared, strategy.init_private(num_items, RNG), strategy.init_server_state(shared)


@given(st.integers(0, 40), st.integers(1, 25))
def test_pairs_of_all_items_are_the_triangle_in_order(items: int, piece: int) -> None:
    with mock.patch.object(gram_module, "PIECE", piece):
        found = list(item_pairs(np.arange(items)))
    assert all(len(lower) <= max(piece, items) for lower, _ in found)
    keys = [key for lower, upper in found for key in places(lower, upper)]
    assert keys == list(range(num_pairs(items)))
    assert [(i, j) for lower, upper in found for i, j in zip(lower, upper, strict=True)] == [
        (i, j) for j in range(items) for i in range(j)
    ]


@given(st.sets(st.integers(0, 99)))
def test_a_set_survives_float32(items: set[int]) -> None:
    words = as_bits(np.array(sorted(items), dtype=np.int64), 5, torch.zeros(1))
    assert from_bits(words).tolist() == sorted(items)


def test_upload_of_one_user_by_hand() -> None:
    """Items 0, 2 and 3 of four: pairs (0,2), (0,3), (2,3) lie at 1, 3 and 5. B = 0: ‖x‖² = 3."""
    strategy = made()
    shared, private, _ = start(strategy, 4)
    result = strategy.client_update(shared, private, [samples(3, 0, 2, 0)], RNG)
    assert result.update.tensors[COUNTS].tolist() == [1, 0, 1, 1]
    assert result.update.tensors[PAIRS].tolist() == [0, 1, 0, 1, 0, 1]
    assert result.update.weight == 1
    assert result.private[COUNTED].tolist() == [1 + 4 + 8]
    assert result.metrics == {"loss": 3, "num_samples": 8, "counted": 1}


def test_weights_by_hand() -> None:
    """Two users with items 0, 1 and one with item 1, λ = 1: G + λI = (3 2; 2 4), determinant 8.

    P = (4 -2; -2 3)/8, so B₀₁ = -P₀₁/P₁₁ = 2/3 and B₁₀ = 2/4.
    """
    strategy = made(l2=1.0)
    shared, _, state = start(strategy, 2)
    summed = Update({COUNTS: torch.tensor([2.0, 3.0]), PAIRS: torch.tensor([2.0])}, 3.0)
    moved, _ = strategy.server_update(shared, summed, state)
    expected = torch.tensor([[0, 2 / 3], [1 / 2, 0]])
    torch.testing.assert_close(moved[WEIGHTS], expected, rtol=1e-6, atol=0)


def test_a_user_is_counted_once_and_a_changed_history_corrected() -> None:
    strategy = made()
    shared, private, _ = start(strategy)
    total = {n: torch.zeros_like(t) for n, t in strategy.summed_template(shared).items()}
    for items, counted in (((1, 4), 1), ((4, 1), 0), ((1, 4, 9), 1), ((9,), 1)):
        result = strategy.client_update(shared, private, [samples(*items)], RNG)
        private = result.private
        assert result.metrics["counted"] == counted
        assert any(bool(t.any()) for t in result.update.tensors.values()) == bool(counted)
        total = {n: t + result.update.tensors[n] for n, t in total.items()}
    alone = strategy.client_update(shared, start(strategy)[1], [samples(9)], RNG)
    assert all(torch.equal(total[n], alone.update.tensors[n]) for n in total)


def test_sketched_uploads_have_one_form_and_take_back_as_well() -> None:
    strategy = made(sketch_width=8, sketch_rows=2)
    shared, private, _ = start(strategy)
    first = strategy.client_update(shared, private, [samples(1, 4, 7)], RNG)
    assert first.update.tensors[PAIRS].shape == (2, 8)
    # Three pairs a row, each at ±1.
    assert (first.update.tensors[PAIRS].sum(1) % 2 == 1).all()
    second = strategy.client_update(shared, first.private, [samples(2)], RNG)
    taken = first.update.tensors[PAIRS] + second.update.tensors[PAIRS]
    assert not taken.any()  # a single item has no pair


def test_weights_wait_for_their_round_and_for_a_change() -> None:
    strategy = made(solve_every=2)
    shared, private, state = start(strategy)
    update = strategy.client_update(shared, private, [samples(1, 4)], RNG).update
    none = Update({n: torch.zeros_like(t) for n, t in update.tensors.items()}, 1.0)
    one, state = strategy.server_update(shared, update, state)
    assert not one[WEIGHTS].any()
    assert (state[ROUND], state[UNSOLVED]) == (1, 1)
    two, state = strategy.server_update(one, none, state)
    assert two[WEIGHTS].any()
    assert (state[ROUND], state[UNSOLVED]) == (2, 0)
    _, state = strategy.server_update(two, none, state)
    four, state = strategy.server_update(two, none, state)
    assert four is two  # nothing to solve


def test_counts_beyond_float32_are_refused() -> None:
    strategy = made()
    shared, _, state = start(strategy, 2)
    summed = Update({COUNTS: torch.full((2,), 2.0**24), PAIRS: torch.zeros(1)}, 1.0)
    with pytest.raises(ValueError, match=r"item_counts reached 1\.68e\+07"):
        strategy.server_update(shared, summed, state)


def test_the_shift_makes_an_indefinite_matrix_definite() -> None:
    """λ = 1 and eigenvalues 1 ± 4: s + 1/2 is to be above 3, of 0, 1, 2, 4. A singular one: 0."""
    counts_I, pairs_P = torch.tensor([1.0, 1.0]), torch.tensor([4.0])
    assert shift_of(counts_I, pairs_P, 1.0) == 4
    assert shift_of(torch.tensor([4.0, 4.0]), pairs_P, 1.0) == 0
    with pytest.raises(ValueError, match="not positive definite with l2=1: raise it"):
        ease_weights(gram(counts_I, pairs_P), 1.0)


def test_the_weights_need_no_second_matrix() -> None:
    """They lie where the Gram matrix did: at 25,000 items a copy is 5 GB."""
    gram_II = gram(torch.tensor([2.0, 3.0]), torch.tensor([2.0]))
    assert ease_weights(gram_II, 1.0).data_ptr() == gram_II.data_ptr()


def test_largest_entries_of_any_slab_are_those_of_the_whole() -> None:
    weights_II, model = (
        torch.randn(9, 9, generator=torch.Generator().manual_seed(0)),
        ItemWeights(2),
    )
    whole = model.packed(weights_II, torch.float32)
    with mock.patch.object(ease_module, "SLAB", 4):
        assert torch.equal(model.packed(weights_II, torch.float32), whole)


def test_scores_are_sums_of_rows_and_of_their_largest_entries() -> None:
    weights_II = torch.tensor([[0.0, 3, -5], [1, 0, 2], [7, -8, 0]])
    history = History(np.array([0, 2]), np.array([2, 0]))
    whole, largest = made(), made(top_k=1)
    shared = {WEIGHTS: whole.model.packed(weights_II, torch.float32)}
    scores_UI = whole.scores_all(shared, {}, history)
    assert scores_UI.tolist() == [[7, -5, -5], [0, 0, 0]]
    again = whole.model.scores(shared, {HISTORY: history.one_hot(3)}, np.array([2, 0]))
    assert again.tolist() == [[-5, 7], [0, 0]]
    shared = {WEIGHTS: largest.model.packed(weights_II, torch.float32)}
    assert shared[WEIGHTS].tolist() == [[-5, 2], [2, 2], [-8, 1]]
    assert largest.scores_all(shared, {}, history).tolist() == [[0, -8, -5], [0, 0, 0]]
    items_UC = np.array([[2, 1], [0, 1]])
    assert largest.score_candidates(shared, {}, items_UC, history).tolist() == [[-5, -8], [0, 0]]


def test_all_entries_kept_score_as_the_whole() -> None:
    weights_II = torch.randn(9, 9, generator=torch.Generator().manual_seed(0)).double()
    history = History(np.array([0, 2, 5, 8]), np.array([3, 1]))
    scores = []
    for strategy in (made(), made(top_k=20)):
        shared = {WEIGHTS: strategy.model.packed(weights_II, torch.float64)}
        scores.append(strategy.scores_all(shared, {}, history))
    torch.testing.assert_close(*scores, rtol=1e-14, atol=1e-14)


def test_the_loss_is_the_squared_error_of_the_row() -> None:
    """B₀₁ = 1/2: a user with item 0 alone has the row (1, 0) and the scores (0, 1/2): 1 + 1/4."""
    strategy = made()
    _, private, _ = start(strategy, 2)
    shared = {WEIGHTS: torch.tensor([[0, 0.5], [0, 0]])}
    positive = Samples(np.array([0]), np.ones(1, dtype=np.float32))
    assert strategy.client_update(shared, private, [positive], RNG).metrics["loss"] == 1.25


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"l2": 0.0}, r"l2 must be positive, got 0\.0"),
        ({"solve_every": 0}, "solve_every must be at least 1, got 0"),
        ({"sketch_width": 0}, "sketch_width must be at least 1, got 0"),
        ({"sketch_rows": 0}, "sketch_rows must be at least 1, got 0"),
    ],
)
def test_bad_settings(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedEASEConfig(**changes)  # type: ignore[arg-type]


def test_other_models_and_no_entries_are_refused() -> None:
    with pytest.raises(ValueError, match="fedease needs model=ease"):
        FedEASE(FedEASEConfig(), MatrixFactorisation())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="top_k must be at least 1 or null, got 0"):
        ItemWeights(0)


def test_items_are_not_a_users_own() -> None:
    assert not made().has_own_item_parameters


# ---- sizes and rounds that a run cannot have ----------------------------------------------
def whole_run(folder: Path, *words: str) -> None:
    cfg = tiny_run.config(folder, "strategy=fedease", "federation.num_nodes=1", *words)
    run_server(LocalGrid(1), cfg)


def test_an_answer_that_no_node_can_keep_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 items: 780 pairs and 40 counts of 4 bytes are 3,280; a sketch of 3 rows of 8 is not."""
    monkeypatch.setattr("server_app.storable.MAX_STORED_BYTES", 3280)
    with pytest.raises(ConfigError, match=r"40 items an answer takes 0\.00 GB.*sketch_width$"):
        whole_run(tmp_path)
    assert not (tmp_path / "runs" / "tiny" / "metrics.jsonl").read_text()
    whole_run(tmp_path, "strategy.sketch_width=8", "federation.rounds=1", "name=sketched")
    monkeypatch.setattr("server_app.storable.MAX_STORED_BYTES", 3281)
    whole_run(tmp_path, "federation.rounds=1", "name=whole")


def test_shared_parameters_that_a_deployed_node_cannot_keep_are_refused(tmp_path: Path) -> None:
    """15,812² numbers of 4 bytes are 1.0001 · 10⁹; one item less is below."""
    simulated = tiny_run.config(tmp_path, "strategy=fedease", "strategy.sketch_width=8")
    federation = replace(simulated.federation, grid="deployment")
    deployed, strategy = replace(simulated, federation=federation), made(sketch_width=8)
    for num_items, refused in ((15_811, False), (15_812, True)):
        shared = {WEIGHTS: torch.zeros(1).expand(num_items, num_items)}
        check_storable(simulated, strategy, shared, num_items)
        with pytest.raises(ConfigError, match=r"top_k$") if refused else nullcontext():
            check_storable(deployed, strategy, shared, num_items)


def test_a_run_that_ends_before_the_first_solve_is_refused(tmp_path: Path) -> None:
    """Its weights would all be zero. Figures of rounds between two solves are remarked on."""
    solve = ("strategy=fedease", "strategy.solve_every=4")
    with pytest.raises(ConfigError, match=r"every 4 rounds: federation\.rounds=3 would end"):
        tiny_run.config(tmp_path, *solve, "federation.rounds=3")
    for every, rounds, told in ((4, 8, False), (4, 10, True), (2, 8, True)):
        words = (f"evaluation.every={every}", f"federation.rounds={rounds}")
        said = remarks(tiny_run.config(tmp_path, *solve, *words))
        assert any("every 4 rounds" in remark for remark in said) == told
