"""Block-wise ranking against a naive computation, one user and one item at a time."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from client_app.data import Dataset
from client_app.evaluation import RankingSums, evaluate, popularity
from models.types import IntArray

NUM_USERS, NUM_ITEMS, NUM_CANDIDATES = 23, 40, 6
CUTOFFS = (1, 5, 10)
EVERYONE = np.arange(NUM_USERS)


def made_up(repeats: bool = True) -> Dataset:
    """Ragged users; user 0 has no test item, user 1 no validation item, user 2 no training item.

    With ``repeats`` some held-out items are training items as well.
    """
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 30, NUM_USERS)
    lengths[2] = 0
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    rows, test_U, validation_U = [], [], []
    for user in range(NUM_USERS):
        order = rng.permutation(NUM_ITEMS)
        # At most 29 of 40 items, so some are left to hold out and to rank against.
        rows.append(np.sort(rng.choice(order[:25], lengths[user])))
        test_U.append(order[0] if repeats and user % 3 == 0 else order[25])
        validation_U.append(order[26])
    test_U[0], validation_U[1] = -1, -1
    candidates = np.stack(
        [
            np.sort(rng.choice(NUM_ITEMS, NUM_CANDIDATES, replace=False))
            for _ in range(2 * NUM_USERS)
        ]
    )
    return Dataset(
        user_ids=np.arange(NUM_USERS).astype(str),
        item_ids=np.arange(NUM_ITEMS).astype(str),
        indptr=indptr,
        train_items=np.concatenate(rows),
        test_U=np.array(test_U),
        validation_U=np.array(validation_U),
        test_candidates_UC=candidates[:NUM_USERS],
        validation_candidates_UC=candidates[NUM_USERS:],
        titles=None,
        fingerprint="",
        catalogue="",
    )


DATA = made_up()


def scores_of(ties: bool) -> Tensor:
    """Scores of all users and items, from five distinct values where ties are wanted."""
    rng = np.random.default_rng(1)
    drawn = (
        rng.integers(0, 5, (NUM_USERS, NUM_ITEMS)).astype(np.float64)
        if ties
        else rng.normal(size=(NUM_USERS, NUM_ITEMS))
    )
    return torch.from_numpy(drawn)


def ranked(
    scores_UI: Tensor, block: int = 4, full: bool = True, data: Dataset = DATA
) -> RankingSums:
    return evaluate(lambda users: scores_UI[users], data, EVERYONE, CUTOFFS, full, block)


def naive(scores_UI: Tensor, data: Dataset) -> tuple[dict[str, float], dict[str, int]]:
    """Sums and counts by plain loops."""
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for user in range(NUM_USERS):
        row, train = scores_UI[user].tolist(), set(data.train_of(user).tolist())
        test, validation = int(data.test_U[user]), int(data.validation_U[user])
        sampled = {"test": data.test_candidates_UC, "validation": data.validation_candidates_UC}
        hidden = {"test": train | {validation}, "validation": train}
        for split, heldout in (("test", test), ("validation", validation)):
            if heldout < 0:
                continue
            rivals = {
                "sampled": sampled[split][user].tolist(),
                "full": [i for i in range(NUM_ITEMS) if i not in hidden[split] and i != heldout],
            }
            for kind, items in rivals.items():
                rank = 1 + sum(row[i] >= row[heldout] for i in items)
                for k in CUTOFFS:
                    hit = float(rank <= k)
                    values = {"hr": hit, "ndcg": hit / math.log2(1 + rank), "mrr": hit / rank}
                    for metric, value in values.items():
                        name = f"{split}/{kind}/{metric}@{k}"
                        sums[name] = sums.get(name, 0.0) + value
                        counts[name] = counts.get(name, 0) + 1
    return sums, counts


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("block", [1, 4, 23, 100])
def test_equals_the_naive_computation(ties: bool, block: int) -> None:
    scores_UI = scores_of(ties)
    got = ranked(scores_UI, block)
    sums, counts = naive(scores_UI, DATA)
    assert got.metrics == pytest.approx(sums, rel=1e-12)
    assert got.counts == counts
    assert counts["test/full/hr@10"] == counts["validation/full/hr@10"] == NUM_USERS - 1


def test_sampled_ranking_never_scores_the_catalogue() -> None:
    scores_UI = scores_of(ties=True)

    def catalogue(users: IntArray) -> Tensor:
        raise AssertionError(f"catalogue scored for {users}")

    def candidates(users: IntArray, items_UC: IntArray) -> Tensor:
        return scores_UI[torch.from_numpy(users)].gather(1, torch.from_numpy(items_UC))

    got = evaluate(catalogue, DATA, EVERYONE, CUTOFFS, False, 4, candidates)
    whole = ranked(scores_UI)
    assert got.metrics == {n: v for n, v in whole.metrics.items() if "/sampled/" in n}
    assert got.counts == {n: v for n, v in whole.counts.items() if "/sampled/" in n}
    assert got.exposure_I is None


def test_without_a_candidate_scorer_candidates_come_from_the_catalogue() -> None:
    scores_UI = scores_of(ties=False)
    got = ranked(scores_UI, full=False)
    whole = ranked(scores_UI)
    assert got.metrics == {n: v for n, v in whole.metrics.items() if "/sampled/" in n}


def test_some_users_only() -> None:
    """The sums of two shards add up to those of all users."""
    scores_UI = scores_of(ties=True)
    shards = [
        evaluate(lambda users: scores_UI[users], DATA, users, CUTOFFS, True, 4)
        for users in (EVERYONE[:9], EVERYONE[9:][::-1].copy())
    ]
    whole = ranked(scores_UI)
    for name, value in whole.metrics.items():
        assert sum(s.metrics[name] for s in shards) == pytest.approx(value, rel=1e-12)
    assert shards[0].exposure_I is not None
    assert shards[1].exposure_I is not None
    assert whole.exposure_I is not None
    assert np.array_equal(shards[0].exposure_I + shards[1].exposure_I, whole.exposure_I)


def test_a_repeated_held_out_item_is_ranked() -> None:
    """User 3's test item is a training item; scored highest it has rank 1 in full ranking."""
    data = made_up()
    train = data.train_items.copy()
    train[data.indptr[3]] = data.test_U[3]
    train[data.indptr[3] : data.indptr[4]].sort()
    data = dataclasses.replace(data, train_items=train)
    scores_UI = torch.zeros(NUM_USERS, NUM_ITEMS)
    scores_UI[3, int(data.test_U[3])] = 1.0
    got = evaluate(lambda users: scores_UI[users], data, np.array([3]), (1,), True, 4)
    assert got.metrics["test/full/hr@1"] == 1
    assert got.exposure_I is not None
    assert got.exposure_I[data.test_U[3]] == 0


def test_what_is_known_is_left_out() -> None:
    """Test: training and validation items above the test item do not push it down. Validation:
    the test item does."""
    scores_UI = torch.zeros(NUM_USERS, NUM_ITEMS)
    user = 4
    test, validation = int(DATA.test_U[user]), int(DATA.validation_U[user])
    scores_UI[user, torch.from_numpy(DATA.train_of(user))] = 3.0
    scores_UI[user, validation] = 2.0
    scores_UI[user, test] = 2.5
    got = evaluate(lambda users: scores_UI[users], DATA, np.array([user]), (1, 5), True, 4)
    assert got.metrics["test/full/hr@1"] == 1
    assert got.metrics["validation/full/mrr@5"] == pytest.approx(0.5)
    scores_UI[user, test] = 1.0
    got = evaluate(lambda users: scores_UI[users], DATA, np.array([user]), (1,), True, 4)
    assert got.metrics["test/full/hr@1"] == got.metrics["validation/full/hr@1"] == 1


def test_protocol_without_validation() -> None:
    data = dataclasses.replace(
        DATA,
        validation_U=np.full(NUM_USERS, -1),
        validation_candidates_UC=np.empty((NUM_USERS, 0), dtype=np.int64),
    )
    got = ranked(scores_of(ties=True), data=data)
    assert {name.split("/")[0] for name in got.metrics} == {"test"}


def test_constant_scores_hit_nothing() -> None:
    got = ranked(torch.zeros(NUM_USERS, NUM_ITEMS))
    assert got.metrics["test/sampled/hr@5"] == 0
    assert got.metrics["test/full/hr@10"] == 0


def test_exposure_by_hand() -> None:
    """All users prefer low items: each list is the ten lowest items that the user lacks."""
    scores_UI = -torch.arange(NUM_ITEMS).double().expand(NUM_USERS, -1)
    expected_I = np.zeros(NUM_ITEMS, dtype=np.int64)
    for user in np.flatnonzero(DATA.test_U >= 0):
        known = {*DATA.train_of(user).tolist(), int(DATA.validation_U[user])}
        expected_I[[i for i in range(NUM_ITEMS) if i not in known][:10]] += 1
    got = ranked(scores_UI)
    assert got.exposure_I is not None
    assert np.array_equal(got.exposure_I, expected_I)


def test_exposure_of_a_user_with_few_unknown_items() -> None:
    """Two users know all items but 3 and 2 of them: five places in all, none of a known item."""
    data = dataclasses.replace(
        DATA,
        indptr=np.concatenate(
            [[0, NUM_ITEMS - 3, 2 * NUM_ITEMS - 5], np.full(NUM_USERS - 2, 2 * NUM_ITEMS - 5)]
        ),
        train_items=np.concatenate([np.arange(NUM_ITEMS - 3), np.arange(NUM_ITEMS - 2)]),
        test_U=np.full(NUM_USERS, NUM_ITEMS - 1),
        validation_U=np.full(NUM_USERS, -1),
    )
    got = evaluate(lambda users: torch.rand(2, NUM_ITEMS), data, np.array([0, 1]), (10,), True, 4)
    assert got.exposure_I is not None
    assert got.exposure_I.tolist() == [0] * (NUM_ITEMS - 3) + [1, 2, 2]


def test_popularity_ranks_by_counts() -> None:
    counts_I = DATA.item_counts(EVERYONE)
    catalogue, candidates = popularity(counts_I)
    full = evaluate(catalogue, DATA, EVERYONE, CUTOFFS, True, 4)
    sums, _ = naive(torch.from_numpy(counts_I).double().expand(NUM_USERS, -1), DATA)
    assert full.metrics == pytest.approx(sums, rel=1e-12)
    sampled = evaluate(catalogue, DATA, EVERYONE, CUTOFFS, False, 4, candidates)
    assert sampled.metrics == {n: v for n, v in full.metrics.items() if "/sampled/" in n}


def test_nobody_to_rank() -> None:
    got = evaluate(
        lambda users: torch.zeros(len(users), NUM_ITEMS), DATA, EVERYONE[:0], CUTOFFS, True, 4
    )
    assert got.metrics == {}
    assert got.counts == {}
    assert got.exposure_I is not None
    assert got.exposure_I.tolist() == [0] * NUM_ITEMS


def test_nan_scores_are_an_error() -> None:
    scores_UI = scores_of(ties=False)
    scores_UI[7, int(DATA.test_U[7])] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        ranked(scores_UI)


def test_misshapen_scores_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"shape \(4, 39\), expected \(4, 40\)"):
        ranked(scores_of(ties=False)[:, :-1])


def test_block_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="block must be at least 1, got 0"):
        ranked(scores_of(ties=False), block=0)
