"""What the benchmarks compare computes the same, and what they count is what is needed."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
import torch

from benchmarks import dense_samples, two_processes, ways
from benchmarks.made_up import Shape, Work, doubled, made_up
from benchmarks.timing import Way, alternate
from models.types import Tensors

SHAPE = Shape(users=5, items=150, median_rows=30, least_rows=5, most_rows=60)
CASES = {
    "fedrecgel": ["strategy=fedrecgel"],
    "fedncf": ["strategy=fedncf"],
    "fedmf": ["strategy=fedmf"],
    "fedrecgel, mf": ["strategy=fedrecgel", "model=mf"],
    "fedavg": ["strategy=fedavg"],
}


def work(case: str, engine: str = "cohort") -> Work:
    overrides = [*CASES[case], "model.factors=4", f"engine={engine}", "engine.block_users=2"]
    return doubled(made_up(overrides, SHAPE))


def differences(ours: Tensors, theirs: Tensors) -> dict[str, float]:
    assert ours.keys() == theirs.keys()
    return {n: float((t - theirs[n]).norm() / theirs[n].norm()) for n, t in ours.items()}


@pytest.mark.parametrize("engine", ["cohort", "loop"])
@pytest.mark.parametrize("case", CASES)
def test_dense_style_sums_to_our_update(case: str, engine: str) -> None:
    ours, dense = work(case, engine), ways.Dense(work(case))
    dense.round()
    found = differences(ways.updates(ours).tensors, dense.sums())
    assert max(found.values()) < 1e-10, found


@pytest.mark.parametrize("case", CASES)
def test_dense_server_steps_as_ours(case: str) -> None:
    ours, dense = work(case), ways.Dense(work(case))
    dense.round()
    stepped = ways.stepped(ours, ways.updates(ours))
    theirs = {n: p.detach().view_as(stepped[n]) for n, p in dense.server.shared.items()}
    # Adam divides a gradient by its size, so tiny gradients keep few digits; its step is lr.
    for name, tensor in stepped.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-8, atol=1e-8)
        assert not torch.equal(tensor, ours.shared[name])


@pytest.mark.parametrize("case", ["fedrecgel", "fedmf", "fedavg"])
def test_dense_clients_keep_the_private_step(case: str) -> None:
    ours, dense = work(case), ways.Dense(work(case))
    dense.round()
    private = ours.state.layout.unpack(ours.state.rows_UP)
    rngs = [np.random.default_rng(0)] * len(ours.users)
    after = ours.strategy.cohort_update(ours.shared, private, ours.epochs, rngs).private
    for user, client in enumerate(dense.clients):
        for name, parameter in client.model.named(private=True):
            expected = after[name][user]
            torch.testing.assert_close(parameter[0].detach(), expected, rtol=1e-7, atol=1e-7)
            assert not torch.equal(expected, private[name][user])


def test_a_whole_round_is_the_round_of_given_samples() -> None:
    ours = made_up([*CASES["fedmf"], "engine.block_users=2"], SHAPE)
    given, drawn = ways.updates(ours), ways.whole_round(ours)
    for name, tensor in given.tensors.items():
        assert torch.equal(tensor, drawn.tensors[name])


def test_dense_drawing_takes_negatives_from_outside() -> None:
    mask = torch.tensor([True, False, True, False, False, False])
    samples = dense_samples.draw(mask, 3, random.Random(1))
    rows = samples.items_S.view(2, 4)
    assert sorted(rows[:, 0].tolist()) == [0, 2]
    assert samples.labels_S.view(2, 4).tolist() == [[1, 0, 0, 0]] * 2
    for negatives in rows[:, 1:].tolist():
        assert len(set(negatives)) == 3
        assert set(negatives) <= {1, 3, 4, 5}


def test_halves_are_balanced_and_complete() -> None:
    """9 | 7, then 5 to the second (12), 4 to the first (13), 3 to the second (15)."""
    assert ways.balanced_halves([4, 9, 3, 5, 7]) == ([0, 1], [2, 3, 4])


def test_made_up_cohort_has_the_shape_asked_for() -> None:
    dataset = made_up(CASES["fedmf"], SHAPE).dataset
    sizes = np.diff(dataset.indptr)
    assert (dataset.num_users, dataset.num_items) == (5, 150)
    assert sizes.tolist() == sorted(sizes.tolist())
    assert sizes.min() >= 5
    assert sizes.max() <= 60
    for user in range(5):
        assert len(np.unique(dataset.train_of(user))) == sizes[user]


def test_two_halves_add_up_to_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """What both processes leave in their sums, here made one after the other in this one."""
    monkeypatch.setattr(two_processes, "_mine", {})
    overrides = [*CASES["fedrecgel"], "model.factors=4"]
    whole = made_up(overrides, SHAPE)
    total: Tensors = {name: torch.zeros_like(tensor) for name, tensor in whole.shared.items()}
    weight = 0.0
    for part in range(2):
        sums: Tensors = {name: torch.ones_like(tensor) for name, tensor in total.items()}
        two_processes._start(overrides, SHAPE, part, sums)
        weight += two_processes._train_given()
        given = {name: tensor.clone() for name, tensor in sums.items()}
        two_processes._train_drawn()
        for name, tensor in sums.items():
            assert torch.equal(tensor, given[name])
            total[name] += tensor
    assert weight == SHAPE.users
    # single precision, as the engines' contract has it: another order of sums
    assert max(differences(total, ways.updates(whole).tensors).values()) < 1e-5


def test_ways_take_turns_after_a_call_that_does_not_count() -> None:
    calls = list[str]()
    turns = {name: Way(partial(calls.append, name)) for name in "ab"}
    seconds = alternate(turns, repeats=2, least_s=0.0)
    assert "".join(calls) == "ab" + "ab" * 2
    assert seconds.keys() == turns.keys()
