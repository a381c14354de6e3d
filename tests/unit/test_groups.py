"""Accuracy by group of users, on a data set small enough to count by hand."""

from __future__ import annotations

from math import log2, sqrt

import numpy as np
import pytest

from client_app.data import Dataset
from experiments.groups import Grouping, accuracy_in_groups, by_activity, by_answer

NUM_ITEMS = 20


def dataset(rows: list[list[int]], test: list[int]) -> Dataset:
    none = np.empty((len(rows), 0), dtype=np.int64)
    return Dataset(
        user_ids=np.arange(len(rows)).astype(str),
        item_ids=np.arange(NUM_ITEMS).astype(str),
        indptr=np.append(0, np.cumsum([len(row) for row in rows])),
        train_items=np.array([item for row in rows for item in row], dtype=np.int64),
        test_U=np.array(test),
        validation_U=np.array(test)[::-1].copy(),
        test_candidates_UC=none,
        validation_candidates_UC=none,
        titles=None,
        fingerprint="",
        catalogue="",
    )


def of_lengths(*lengths: int) -> Dataset:
    return dataset([list(range(n)) for n in lengths], [19] * len(lengths))


def test_terciles_of_six_users() -> None:
    found = by_activity(of_lengths(9, 1, 5, 2, 7, 4), np.arange(6))
    # Ascending 1 2 | 4 5 | 7 9
    assert found.group_U.tolist() == [2, 0, 1, 0, 2, 1]
    assert found.names == ("few (1–2)", "medium (4–5)", "many (7–9)")


def test_users_with_equal_numbers_stay_together() -> None:
    found = by_activity(of_lengths(3, 3, 3, 3, 8, 9), np.arange(6))
    # Both third and two thirds of the users have at most 3.
    assert found.group_U.tolist() == [0, 0, 0, 0, 2, 2]
    assert found.names == ("few (3)", "medium", "many (8–9)")


def test_quantiles_are_of_the_users_asked_for() -> None:
    found = by_activity(of_lengths(9, 1, 5, 2, 7, 4), np.array([0, 4]), quantiles=(0.5,))
    assert found.group_U.tolist() == [1, 0]
    assert found.names == ("few (7)", "many (9)")


def test_popular_answers_are_those_of_the_tenth_of_the_catalogue() -> None:
    # Items 4 and 7 have 3 and 2 rows, item 2 has 2 as well and the lower index: of 20 items the
    # popular two are 4 and 2.
    data = dataset([[2, 4, 7], [2, 4], [4, 7]], [2, 7, 4])
    assert by_answer(data, np.arange(3)).group_U.tolist() == [0, 1, 0]
    assert by_answer(data, np.arange(3), "validation").group_U.tolist() == [0, 1, 0]
    assert by_answer(data, np.array([1])).group_U.tolist() == [1]


def test_users_without_an_answer_are_in_no_group() -> None:
    assert by_answer(dataset([[2], [2]], [2, -1]), np.arange(2)).group_U.tolist() == [0, -1]


def test_hit_and_ndcg_by_hand() -> None:
    grouping = Grouping(("a", "b", "c"), np.array([0, 0, 0, 1, 1, -1]))
    # Ranks from 0: the first, the third and the eleventh place; none; the second; ungrouped.
    found = accuracy_in_groups(grouping, np.array([0, 2, 10, -1, 1, 0]), cutoff=10)
    assert found.users_K.tolist() == [3, 1, 0]
    assert found.hit_K[:2].tolist() == pytest.approx([2 / 3, 1.0])
    assert found.ndcg_K[:2].tolist() == pytest.approx([(1 + 1 / 2 + 0) / 3, 1 / log2(3)])
    # Hits 1, 1, 0 have the sample variance 1/3.
    assert found.hit_error_K[0] == pytest.approx(sqrt(1 / 3) / sqrt(3))
    assert np.isnan([found.hit_error_K[1], found.hit_K[2], found.ndcg_K[2]]).all()


def test_all_groups_together_are_all_users() -> None:
    rng = np.random.default_rng(0)
    ranks_U = rng.integers(0, 30, 50)
    grouping = by_activity(of_lengths(*rng.integers(1, 19, 50)), np.arange(50))
    found = accuracy_in_groups(grouping, ranks_U, cutoff=5)
    assert found.users_K.sum() == 50
    assert (found.hit_K * found.users_K).sum() == pytest.approx((ranks_U < 5).sum())
