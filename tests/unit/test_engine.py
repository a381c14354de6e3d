"""Local training: order of sums, streams, engines against each other, errors that name users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import tiny_run
import torch
from hypothesis import given
from hypothesis import strategies as st

from client_app.engine import Trained, blocks, draw_epochs, train_users
from client_app.failures import TrainError
from client_app.runtime import Node
from models.rng import Role, derive_rng
from models.types import ClientResult, Samples, Tensors, Update
from server_app.grid import LocalGrid
from strategies.base import RecStrategy, StrategyConfig


class Recorder(RecStrategy):
    """Remembers what it is given; the update of a user is its first sample's item."""

    Config: ClassVar[type[StrategyConfig]] = StrategyConfig
    title: ClassVar[str] = "recorder"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.seen: list[tuple[Tensors, list[Samples], int]] = []

    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        self.seen.append((private, list(epochs), int(rng.integers(1 << 40))))
        moved = {n: t + len(self.seen) for n, t in private.items()}
        update = {n: torch.ones_like(t) for n, t in shared.items()}
        return ClientResult(Update(update, 1.0), moved, {"loss": 0.5})


def recording(node: Node, local_epochs: int = 1) -> Recorder:
    return Recorder(StrategyConfig(local_epochs=local_epochs), node.strategy.model)


def trained(node: Node, users: Sequence[int], round_: int = 1, **changed: object) -> Trained:
    node = replace(node, **changed)  # type: ignore[arg-type]
    return train_users(
        node.strategy,
        tiny_run.shared(node.cfg),
        np.array(users, dtype=np.int64),
        round_=round_,
        base_round=round_ - 1,
        dataset=node.dataset,
        state=node.state,
        cfg=node.cfg,
    )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return tiny_run.node(tiny_run.config(tmp_path, "strategy=fedmf", "model.factors=4"))


def test_users_go_by_number_of_samples_then_index(node: Node) -> None:
    result = trained(node, [19, 0, 10, 4], strategy=recording(node))
    sizes = [len(node.dataset.train_of(int(u))) for u in result.users]
    assert sorted(result.users) == [0, 4, 10, 19]
    order = list(zip(sizes, result.users.tolist(), strict=True))
    assert order == sorted(order)
    assert [s for s, _ in order] != [sizes[0]] * 4  # the data do have users of several sizes


@pytest.mark.parametrize("strategy", ["fedmf", "fedrecgel"])
def test_workers_change_no_byte(tmp_path: Path, strategy: str) -> None:
    results = []
    for workers in (1, 3):
        folder = tmp_path / str(workers)
        folder.mkdir()
        settings = (f"strategy={strategy}", "engine.block_users=3", f"engine.workers={workers}")
        node = tiny_run.node(tiny_run.config(folder, *settings))
        results.append(trained(node, range(20)))
    one, three = results
    assert np.array_equal(one.rows, three.rows)
    assert all(torch.equal(t, three.update.tensors[n]) for n, t in one.update.tensors.items())
    assert one.metrics == three.metrics


def test_blocks_by_hand() -> None:
    """Sizes 1, 1, 2, 2, 6 in two blocks: 6 of 12 samples each."""
    assert blocks(np.array([1, 1, 2, 2, 6]), 3) == [slice(0, 4), slice(4, 5)]
    assert blocks(np.array([5, 5, 5]), 3) == [slice(0, 3)]
    assert blocks(np.array([1, 1, 9]), 1) == [slice(0, 1), slice(1, 2), slice(2, 3)]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 50))
def test_blocks_cover_the_users_evenly(sizes: list[int], block_users: int) -> None:
    """No block exceeds its share by more than one user's samples."""
    ascending = np.sort(np.array(sizes))
    parts = blocks(ascending, block_users)
    covered = [user for part in parts for user in range(part.start, part.stop)]
    assert covered == list(range(len(sizes)))
    assert all(part.stop > part.start for part in parts)
    count = -(-len(sizes) // block_users)
    assert len(parts) <= count
    if block_users > 1:
        most = max(int(ascending[part].sum()) for part in parts)
        assert most <= ascending.sum() / count + ascending.max()


def test_sum_counts_and_rows(node: Node) -> None:
    """Recorder: every user adds 1 to each shared entry, and its call number to its row."""
    strategy = recording(node)
    before = node.state.rows(np.arange(20), 0)
    result = trained(node, range(20), strategy=strategy)
    assert all(bool((t == 20).all()) for t in result.update.tensors.values())
    assert result.update.weight == 20.0
    assert result.metrics == {"loss": 10.0}
    moved_UP = result.rows - before[result.users]
    # Half a unit in the last place of 20 in float32 is 1e-6.
    np.testing.assert_allclose(
        moved_UP, np.broadcast_to(np.arange(1, 21)[:, None], moved_UP.shape), atol=2e-6
    )


def test_streams_depend_on_user_round_and_epoch_only(node: Node) -> None:
    runs = {}
    for label, users, round_ in (("a", [3, 7, 9], 1), ("b", [9], 1), ("c", [9], 2)):
        strategy = recording(node, local_epochs=2)
        result = trained(node, users, round_, strategy=strategy)
        _, epochs, drawn = strategy.seen[result.users.tolist().index(9)]
        runs[label] = ([e.items_S.tolist() for e in epochs], drawn)
    assert runs["a"] == runs["b"]
    assert runs["a"][0] != runs["c"][0]
    assert runs["a"][1] != runs["c"][1]
    assert runs["a"][0][0] != runs["a"][0][1]  # an epoch draws afresh


def test_samples_are_the_users_own(node: Node) -> None:
    strategy = recording(node)
    result = trained(node, range(20), strategy=strategy)
    for user, (_, epochs, _) in zip(result.users, strategy.seen, strict=True):
        samples = epochs[0]
        positives = samples.items_S[samples.labels_S > 0]
        np.testing.assert_array_equal(np.sort(positives), node.dataset.train_of(int(user)))
        assert len(samples) == len(positives) * (1 + StrategyConfig.num_negatives)
        negatives = samples.items_S[samples.labels_S == 0]
        assert not np.isin(negatives, positives).any()


@pytest.mark.parametrize("rule", ["honest", "exclude_heldout"])
def test_which_items_are_negatives_follows_the_protocol(tmp_path: Path, rule: str) -> None:
    """An item is drawn in 50 rounds if it may be drawn at all, so all others are ruled out.

    Of 40 items a user has 6 to 14 positives, each with 4 negatives: a round misses an item that
    may be drawn with at most (1 - 4/34)^6 = 0.47, all 50 rounds with 0.47^50 < 1e-16.
    """
    cfg = tiny_run.config(
        tmp_path, "strategy=fedmf", "model.factors=4", f"protocol.negatives={rule}"
    )
    node = tiny_run.node(cfg)
    negatives: dict[int, set[int]] = {user: set() for user in range(20)}
    for round_ in range(1, 51):
        strategy = recording(node)
        result = trained(node, range(20), round_, strategy=strategy)
        for user, (_, epochs, _) in zip(result.users.tolist(), strategy.seen, strict=True):
            samples = epochs[0]
            negatives[user] |= set(samples.items_S[samples.labels_S == 0].tolist())
    for user, drawn in negatives.items():
        train = set(node.dataset.train_of(user).tolist())
        heldout = set(node.dataset.heldout_of(user).tolist())
        assert node.dataset.test_U[user] in heldout
        barred = train | heldout if rule == "exclude_heldout" else train
        assert drawn == set(range(40)) - barred


@pytest.mark.parametrize("strategy", ["fedrecgel", "fedncf", "fedavg", "fedmf"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_loop_equals_cohort(tmp_path: Path, strategy: str, epochs: int) -> None:
    """Both compute the same sums in another order; float32 sums of some hundred terms differ by
    about 1e-6 of a tensor's norm, so 1e-5 of it is a wide margin and far below any mistake."""
    names = [f"strategy={strategy}", "model.factors=4", f"strategy.local_epochs={epochs}"]
    nodes = [
        tiny_run.node(tiny_run.config(tmp_path, *names, f"engine={engine}"), run_id=engine)
        for engine in ("loop", "cohort")
    ]
    loop, cohort = (trained(node, range(20)) for node in nodes)
    np.testing.assert_array_equal(loop.users, cohort.users)
    for name, tensor in loop.update.tensors.items():
        assert tensor.norm() > 0, name
        assert (tensor - cohort.update.tensors[name]).norm() <= 1e-5 * tensor.norm(), name
    # Adam divides a gradient by its own size: entries near zero may flip, hence the norm.
    moved = np.linalg.norm(loop.rows - nodes[0].state.rows(loop.users, 0))
    assert np.linalg.norm(loop.rows - cohort.rows) <= 1e-4 * moved
    assert loop.update.weight == cohort.update.weight
    assert set(loop.metrics) == set(cohort.metrics)
    for name, value in loop.metrics.items():
        assert cohort.metrics[name] == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("strategy", ["fedrecgel", "fedmf"])
def test_private_state_with_its_moments_is_carried_over_rounds(
    tmp_path: Path, strategy: str
) -> None:
    """Three rounds by messages and store end where three steps by hand do, to the bit."""
    cfg = tiny_run.config(tmp_path, f"strategy={strategy}", "model.factors=4", "engine=loop")
    node, grid, head = tiny_run.node(cfg), LocalGrid(1), tiny_run.header(cfg)
    shared, users = tiny_run.shared(cfg), np.array([2, 5])
    by_hand = {user: node.state.block(np.array([user]), 0) for user in users}
    for round_ in (1, 2, 3):
        reply = tiny_run.train(grid, tiny_run.downlink(head, shared, users.tolist(), round_))
        assert not reply.has_error(), reply.error.reason
        for user in users:
            private = {n: t[0] for n, t in by_hand[user].items()}
            (epochs,) = draw_epochs(node.strategy, node.dataset, cfg, np.array([user]), round_)
            rng = derive_rng(cfg.seed, Role.STRATEGY, int(user), round_)
            private = dict(node.strategy.client_update(shared, private, epochs, rng).private)
            by_hand[user] = {n: t[None] for n, t in private.items()}
    for user in users:
        for name, tensor in node.state.block(np.array([user]), 3).items():
            assert torch.equal(tensor, by_hand[user][name]), name
            assert bool(tensor.any()), name


class Failing(Recorder):
    """Fails on its third user."""

    error: ClassVar[Exception] = IndexError("index 1234 is out of bounds")

    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        if len(self.seen) == 2:
            raise self.error
        return super().client_update(shared, private, epochs, rng)


def test_errors_name_user_and_stage_and_quote_no_data(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path, "strategy=fedmf", "model.factors=4", "engine=loop")
    node = tiny_run.node(cfg)
    failing = Failing(StrategyConfig(), node.strategy.model)
    third = trained(node, range(20), strategy=recording(node)).users[2]
    with pytest.raises(TrainError, match=rf"^user {third}: training: IndexError: \(text") as info:
        trained(node, range(20), strategy=failing)
    assert "1234" not in str(info.value)


def test_errors_of_a_block_name_its_users(node: Node) -> None:
    failing = Failing(StrategyConfig(), node.strategy.model)
    with pytest.raises(
        TrainError, match=r"^users (\d+, ){4}\d+ and \d+ more: training: IndexError"
    ):
        trained(node, range(20), strategy=failing)


def test_too_many_negatives_says_which_setting(node: Node) -> None:
    strategy = Recorder(StrategyConfig(num_negatives=39), node.strategy.model)
    with pytest.raises(TrainError, match=r"drawing samples: DataError: .*num_negatives"):
        trained(node, [5], strategy=strategy)


class Diverging(Recorder):
    """Makes the private row of its second user NaN."""

    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        result = super().client_update(shared, private, epochs, rng)
        if len(self.seen) != 2:
            return result
        broken = {n: torch.full_like(t, torch.nan) for n, t in result.private.items()}
        return replace(result, private=broken)


def test_a_diverged_user_is_named(node: Node) -> None:
    diverging = Diverging(StrategyConfig(), node.strategy.model)
    second = trained(node, range(6), strategy=recording(node)).users[1]
    with pytest.raises(TrainError, match=rf"^user {second}: training: private .*; lower the l"):
        trained(node, range(6), strategy=diverging)


class Overflowing(Recorder):
    """Uploads an infinite number."""

    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        result = super().client_update(shared, private, epochs, rng)
        result.update.tensors["item_emb"][3, 1] = torch.inf
        return result


def test_an_update_that_overflowed_is_not_sent(node: Node) -> None:
    overflowing = Overflowing(StrategyConfig(), node.strategy.model)
    with pytest.raises(TrainError, match=r"^user 5: training: the update of 'item_emb' is not fin"):
        trained(node, [5], strategy=overflowing)


def test_a_diverged_run_names_the_rates_to_lower(tmp_path: Path) -> None:
    large = ["strategy.shared_lr=1e30", "strategy.private_lr=1e30", "strategy=fedavg"]
    node = tiny_run.node(tiny_run.config(tmp_path, *large, "strategy.local_epochs=4"))
    with pytest.raises(
        TrainError, match=r"; lower strategy\.shared_lr=1e\+30 or strategy\.private_lr=1e\+30$"
    ):
        trained(node, range(6), strategy=node.strategy)


def test_no_users_is_an_error(node: Node) -> None:
    with pytest.raises(ValueError, match="no user"):
        trained(node, [])
