"""The split's rules, each on rows small enough to follow by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from client_app.errors import DataError
from client_app.interactions import Interactions
from client_app.split import Split, split
from conf.tree import ProtocolConfig

STRICT = ProtocolConfig(name="strict", min_interactions=3)
PAPER = replace(STRICT, name="paper", duplicates="keep", validation=False)


def divided(rows: str, protocol: ProtocolConfig) -> Split:
    """Split rows given as lines ``user item time``; items are numbered in the alphabet's order."""
    users, items, times = zip(*(row.split() for row in rows.splitlines()), strict=True)
    user_ids, item_ids = sorted(set(users)), sorted(set(items))
    data = Interactions(
        users=np.array([user_ids.index(u) for u in users]),
        items=np.array([item_ids.index(i) for i in items]),
        times=np.array([int(t) for t in times]),
        user_ids=np.array(user_ids),
        item_ids=np.array(item_ids),
        counts={},
    )
    return split(data, protocol, "small")


def named(parts: Split) -> dict[str, tuple[list[str], str | None, str | None]]:
    """Training items, validation item and test item of each user, by raw ids."""
    ids = parts.item_ids.tolist()
    return {
        str(user): (
            [ids[i] for i in parts.train_items[parts.indptr[u] : parts.indptr[u + 1]]],
            ids[parts.validation_U[u]] if parts.validation_U[u] >= 0 else None,
            ids[parts.test_U[u]] if parts.test_U[u] >= 0 else None,
        )
        for u, user in enumerate(parts.user_ids)
    }


def test_latest_is_test_and_second_latest_validation() -> None:
    rows = "u a 30\nu b 10\nu c 20\nu d 40"
    assert named(divided(rows, STRICT)) == {"u": (["b", "c"], "a", "d")}
    assert named(divided(rows, PAPER)) == {"u": (["a", "b", "c"], None, "d")}


def test_among_equal_times_the_lowest_item_comes_first() -> None:
    rows = "u a 1\nu b 9\nu c 9\nu d 9"
    assert named(divided(rows, PAPER)) == {"u": (["a", "c", "d"], None, "b")}
    assert named(divided(rows, STRICT)) == {"u": (["a", "d"], "c", "b")}


def test_among_equal_times_the_first_line_comes_first_where_asked() -> None:
    rows = "u d 9\nu a 1\nu b 9\nu c 9"
    first = replace(STRICT, ties="first_line")
    assert named(divided(rows, first)) == {"u": (["a", "c"], "b", "d")}
    assert named(divided(rows, STRICT)) == {"u": (["a", "d"], "c", "b")}


def test_a_tie_for_the_second_place_goes_to_the_lowest_item_too() -> None:
    rows = "u a 1\nu b 8\nu c 8\nu d 9"
    assert named(divided(rows, STRICT)) == {"u": (["a", "c"], "b", "d")}


REPEATED = "u a 1\nu b 2\nu c 3\nu d 4\nu a 5\nu b 2"


def test_repeats_are_kept_by_the_paper() -> None:
    parts = divided(REPEATED, PAPER)
    assert named(parts) == {"u": (["a", "b", "b", "c", "d"], None, "a")}
    assert parts.counts["repeated_rows"] == 2
    assert parts.own_items.tolist() == [0, 1, 2, 3]


def test_repeats_are_merged_into_the_latest_or_the_earliest() -> None:
    """With ``last`` the times are a 5, b 2, c 3, d 4; with ``first`` a 1, b 2, c 3, d 4."""
    assert named(divided(REPEATED, STRICT)) == {"u": (["b", "c"], "d", "a")}
    first = replace(STRICT, duplicates="first")
    assert named(divided(REPEATED, first)) == {"u": (["a", "b"], "c", "d")}


def test_repeats_are_merged_before_users_are_dropped() -> None:
    rows = "u a 1\nu a 2\nu b 3\nv a 1\nv b 2\nv c 3"
    assert list(named(divided(rows, PAPER))) == ["u", "v"]
    parts = divided(rows, STRICT)
    assert list(named(parts)) == ["v"]
    assert parts.counts["users_dropped"] == 1
    assert parts.counts["rows_used"] == 3


def test_users_are_dropped_once_and_items_are_not_thresholded() -> None:
    """Item d leaves with user v; u keeps item a though no one else has it."""
    rows = "u a 1\nu b 2\nu c 3\nv b 1\nv d 2"
    parts = divided(rows, STRICT)
    assert parts.item_ids.tolist() == ["a", "b", "c"]
    assert named(parts) == {"u": (["a"], "b", "c")}


def test_one_training_row_stays_whatever_the_protocol() -> None:
    few = replace(STRICT, min_interactions=1)
    rows = "u a 1\nv a 1\nv b 2\nw a 1\nw b 2\nw c 3"
    assert named(divided(rows, few)) == {
        "u": (["a"], None, None),
        "v": (["a"], None, "b"),
        "w": (["a"], "b", "c"),
    }


def test_no_user_left_is_an_error() -> None:
    with pytest.raises(DataError, match=r"dataset=small: no user has protocol\.min_interactions=9"):
        divided("u a 1\nu b 2", replace(STRICT, min_interactions=9))
