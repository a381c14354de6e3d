"""Candidates of sampled evaluation: outside the user's items, distinct, the same everywhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from client_app.candidates import TEST_STREAM, VALIDATION_STREAM, derived, notebook
from client_app.errors import DataError
from client_app.interactions import Interactions
from client_app.split import Split, split
from conf.tree import ProtocolConfig
from models.rng import Role, UserStreams
from models.types import IntArray

NUM_USERS, NUM_ITEMS = 12, 60


def small_split(num_users: int = NUM_USERS) -> Split:
    """User u has items u, u + 3, u + 6, … below ``NUM_ITEMS``: about a third of them."""
    pairs = [(u, i) for u in range(num_users) for i in range(u, NUM_ITEMS, 3)]
    users, items = np.array(pairs, dtype=np.int64).T
    user_ids = np.array([f"u{n}" for n in range(num_users)])
    item_ids = np.array([f"i{n}" for n in range(NUM_ITEMS)])
    data = Interactions(users, items, items, user_ids, item_ids, {})
    return split(data, ProtocolConfig(name="strict"), "small")


@pytest.mark.parametrize("draw", [lambda s, c: derived(s, c, TEST_STREAM), notebook])
def test_candidates_are_distinct_sorted_and_outside_all_of_the_users_rows(
    draw: Callable[[Split, int], IntArray],
) -> None:
    parts = small_split()
    candidates = draw(parts, 20)
    assert candidates.shape == (NUM_USERS, 20)
    assert candidates.dtype == np.int64
    for user, row in enumerate(candidates.tolist()):
        own = parts.own_items[parts.own_indptr[user] : parts.own_indptr[user + 1]]
        assert row == sorted(set(row))
        assert set(row) <= set(range(NUM_ITEMS)) - set(own.tolist())


def test_a_users_candidates_do_not_depend_on_the_other_users() -> None:
    few, many = small_split(4), small_split()
    np.testing.assert_array_equal(derived(few, 20, TEST_STREAM), derived(many, 20, TEST_STREAM)[:4])


def test_test_and_validation_have_streams_of_their_own() -> None:
    parts = small_split()
    test, validation = (derived(parts, 20, s) for s in (TEST_STREAM, VALIDATION_STREAM))
    assert (test != validation).any(axis=1).all()


def test_candidates_come_from_the_stated_stream() -> None:
    """The first distinct ranks of (42, EVAL_NEGATIVES, stream, user) count what the user lacks."""
    parts = small_split()
    own = set(range(5, NUM_ITEMS, 3))
    lacking = [item for item in range(NUM_ITEMS) if item not in own]
    numbers = UserStreams(42, Role.EVAL_NEGATIVES, 1).uniforms(np.array([5]), [60])
    ranks = list(dict.fromkeys((numbers * len(lacking)).astype(int).tolist()))[:7]
    expected = sorted(lacking[rank] for rank in ranks)
    assert derived(parts, 7, VALIDATION_STREAM)[5].tolist() == expected


def test_the_global_generators_are_left_alone() -> None:
    import random

    random.seed(1)
    before = random.getstate()
    notebook(small_split(), 20)
    assert random.getstate() == before


@pytest.mark.parametrize("draw", [lambda s, c: derived(s, c, TEST_STREAM), notebook])
def test_a_catalogue_that_is_too_small_names_the_key(
    draw: Callable[[Split, int], IntArray],
) -> None:
    """User u0 has 20 of the 60 items, so 40 are left: enough for 40, not for 41."""
    assert draw(small_split(), 40).shape == (NUM_USERS, 40)
    message = (
        r"user 'u0' has 20 of the 60 items, so only 40 are left to rank against; "
        r"lower protocol\.num_candidates=41 to 40"
    )
    with pytest.raises(DataError, match=message):
        draw(small_split(), 41)


@pytest.mark.parametrize("draw", [lambda s, c: derived(s, c, TEST_STREAM), notebook])
def test_a_user_with_every_item_is_not_told_to_lower_the_number(
    draw: Callable[[Split, int], IntArray],
) -> None:
    parts = full_split()
    with pytest.raises(
        DataError, match=r"^2 of the 3 users, such as 'u0', have every one of the 6"
    ):
        draw(parts, 1)


def full_split() -> Split:
    """Users u0 and u1 have all six items, u2 lacks the last one."""
    rows = [(u, i) for u in range(3) for i in range(6 if u < 2 else 5)]
    users, items = np.array(rows, dtype=np.int64).T
    user_ids, item_ids = np.array(["u0", "u1", "u2"]), np.array([f"i{i}" for i in range(6)])
    data = Interactions(users, items, items, user_ids, item_ids, {})
    return split(data, ProtocolConfig(name="strict"), "full")
