"""Training samples: never an excluded item, distinct within a positive, each positive once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from client_app.data import Dataset
from client_app.errors import DataError
from client_app.negatives import PIECE, block_samples, draw_samples, excluded_items
from client_app.ragged import Ragged
from models.rng import Role, UserStreams
from models.types import IntArray, Samples

NUM_ITEMS = 40
USERS = st.lists(
    st.lists(st.integers(0, NUM_ITEMS - 1), min_size=0, max_size=30), min_size=1, max_size=6
)


def dataset(rows: list[list[int]], held: list[int] | None = None) -> Dataset:
    """User u trains on ``rows[u]`` and holds out ``held[u]`` for the test."""
    none = np.empty((len(rows), 0), dtype=np.int64)
    return Dataset(
        user_ids=np.arange(len(rows)).astype(str),
        item_ids=np.arange(NUM_ITEMS).astype(str),
        indptr=np.append(0, np.cumsum([len(row) for row in rows])),
        train_items=np.array([item for row in rows for item in sorted(row)], dtype=np.int64),
        test_U=np.array(held or [-1] * len(rows)),
        validation_U=np.full(len(rows), -1),
        test_candidates_UC=none,
        validation_candidates_UC=none,
        titles=None,
        fingerprint="",
        catalogue="",
    )


def ragged(rows: list[list[int]]) -> Ragged:
    flat = [item for row in rows for item in row]
    return Ragged(np.array(flat, dtype=np.int64), np.array([len(row) for row in rows]))


def drawn(
    data: Dataset, users: list[int], num_negatives: int, seed: int = 0, rule: str = "honest"
) -> list[Samples]:
    streams = UserStreams(seed, Role.TRAIN, 1, 0)
    return block_samples(data, np.array(users), rule, num_negatives, streams)


def groups(samples: Samples, num_negatives: int) -> IntArray:
    return samples.items_S.reshape(-1, 1 + num_negatives)


@given(
    USERS,
    st.integers(1, 12),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["honest", "exclude_heldout"]),
)
def test_structure_of_the_samples(
    rows: list[list[int]], num_negatives: int, seed: int, rule: str
) -> None:
    """Repeated positives stay repeated; every group is one positive, then its negatives."""
    held = NUM_ITEMS - 1
    assume(all(len({*row, held}) + num_negatives <= NUM_ITEMS for row in rows))
    data = dataset(rows, [held] * len(rows))
    result = drawn(data, list(range(len(rows))), num_negatives, seed, rule)
    assert len(result) == len(rows)
    for row, samples in zip(rows, result, strict=True):
        assert samples.items_S.dtype == np.int64
        assert samples.labels_S.dtype == np.float32
        items = groups(samples, num_negatives)
        labels = samples.labels_S.reshape(items.shape)
        assert (labels[:, 0] == 1).all()
        assert (labels[:, 1:] == 0).all()
        assert Counter(items[:, 0].tolist()) == Counter(row)
        excluded = {*row, held} if rule == "exclude_heldout" else set(row)
        for group in items[:, 1:].tolist():
            assert len(set(group)) == num_negatives
            assert set(group) <= set(range(NUM_ITEMS)) - excluded


@given(USERS, st.data())
def test_samples_do_not_depend_on_the_block(rows: list[list[int]], data: st.DataObject) -> None:
    assume(all(len(set(row)) <= NUM_ITEMS - 2 for row in rows))
    everyone = drawn(dataset(rows), list(range(len(rows))), 2)
    some = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, unique=True))
    for user, samples in zip(some, drawn(dataset(rows), some, 2), strict=True):
        assert np.array_equal(samples.items_S, everyone[user].items_S)


def test_blocks_beyond_a_piece() -> None:
    """Users of several pieces, and the same ones in another order."""
    rows = [[u % NUM_ITEMS, (3 * u) % NUM_ITEMS, 5] for u in range(2 * PIECE + 3)]
    users = list(range(len(rows)))
    everyone = drawn(dataset(rows), users, 2)
    assert len(everyone) == len(rows)
    backwards = drawn(dataset(rows), users[::-1], 2)[::-1]
    for row, samples, other in zip(rows, everyone, backwards, strict=True):
        assert sorted(samples.items_S[::3].tolist()) == sorted(row)
        assert np.array_equal(samples.items_S, other.items_S)


@pytest.mark.parametrize("place", [0, 1000])
def test_order_of_close_keys_does_not_depend_on_the_place_in_the_block(place: int) -> None:
    """Keys half, half + 2^-40, and just below one; 1000 + half + 2^-53 is no double.

    Two keys that agree in 40 bits keep the order of their items, whatever the place.
    """
    keys = np.array([0.5 + 2.0**-40, 0.5 + 2.0**-53, 0.5, 1 - 2.0**-53])
    rows = [[0]] * place + [[1, 2, 3, 4], [6]]
    uniforms = np.full((place + 5, 2), 0.0)
    uniforms[place : place + 4, 0] = keys
    train = ragged(rows)
    *_, samples, last = draw_samples(train, train, 9, np.arange(place + 2), uniforms)
    assert samples.items_S[::2].tolist() == [2, 3, 1, 4]
    assert last.items_S[::2].tolist() == [6]


@given(st.integers(1, 2**31), st.data())
def test_bias_of_a_whole_number_below_n(n: int, data: st.DataObject) -> None:
    """⌊n·u⌋ reaches i at most one step of 2^-53 before u = i / n does, so 2^-52 bounds the bias.

    Exactly, the first step with n·u >= i is ⌈i · 2^53 / n⌉; rounding may bring it forward by one.
    """
    i = data.draw(st.integers(0, n))
    first = -(-i * 2**53 // n)

    def whole(step: int) -> int:
        return int((np.array([n]) * (step * 2.0**-53)).astype(np.int64)[0])

    if first < 2**53:
        assert whole(first) >= i
    if first >= 2:
        assert whole(first - 2) < i
    assert whole(2**53 - 1) < n


def test_honest_pool_keeps_heldout_items_and_the_other_rule_removes_them() -> None:
    train = ragged([[1, 4, 4, 6], [], [2]])
    held = np.array([[2, 4], [7, -1], [-1, -1]])
    honest = excluded_items(train, held, "honest", 10)
    assert honest.values.tolist() == [1, 4, 6, 2]
    assert honest.lengths_U.tolist() == [3, 0, 1]
    other = excluded_items(train, held, "exclude_heldout", 10)
    assert other.values.tolist() == [1, 2, 4, 6, 7, 2]
    assert other.lengths_U.tolist() == [4, 1, 1]
    with pytest.raises(ValueError, match=r"protocol\.negatives must be honest or"):
        excluded_items(train, held, "other", 10)


def test_an_honest_draw_can_be_the_heldout_item() -> None:
    """Items 0-37 train, 38 is held out, 39 is any other: both are drawn for every positive."""
    data = dataset([list(range(38))], [38])
    items = groups(drawn(data, [0], 2)[0], 2)
    assert all({38, 39} == set(group) for group in items[:, 1:].tolist())
    with pytest.raises(DataError, match=r"only 1 of 40 items"):
        drawn(data, [0], 2, rule="exclude_heldout")


def test_too_few_items_outside_is_an_error() -> None:
    data = dataset([[0], [1], list(range(37))])
    drawn(data, [2, 0], 3)
    message = r"4 negatives .* only 3 of 40 items .* for user 2; lower strategy\.num_negatives"
    with pytest.raises(DataError, match=message):
        drawn(data, [0, 2], 4)


def test_places_of_given_uniform_numbers() -> None:
    """One user with items 1 and 3 of 5; 0, 2, 4 are left.

    Order keys .9 and .2: item 3 comes first. Its numbers .0, .9 give the 0-th of three, then the
    1-st (⌊.9 · 2⌋) of the two left: 0 and 4. Item 1's .7, .6: the 2-nd of three, then the 1-st of
    two: 4 and 2.
    """
    uniforms = np.array([[0.9, 0.0, 0.9], [0.2, 0.7, 0.6]])
    train = ragged([[1, 3]])
    (samples,) = draw_samples(train, train, 5, np.array([0]), uniforms)
    assert samples.items_S.tolist() == [3, 0, 4, 1, 4, 2]
    assert samples.labels_S.tolist() == [1, 0, 0, 1, 0, 0]
