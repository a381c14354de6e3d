"""What every split keeps, whatever the rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given, reject
from hypothesis import strategies as st

from client_app.data import shard_bounds
from client_app.errors import DataError
from client_app.interactions import Interactions
from client_app.split import Split, split
from conf.tree import ProtocolConfig

ROW = st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(-1, 4))
ROWS = st.lists(ROW, min_size=1, max_size=60)
PROTOCOLS = st.builds(
    ProtocolConfig,
    name=st.just("any"),
    min_interactions=st.integers(1, 6),
    duplicates=st.sampled_from(["keep", "last", "first"]),
    validation=st.booleans(),
)


def interactions(rows: list[tuple[int, int, int]]) -> Interactions:
    users, items, times = np.array(rows, dtype=np.int64).T
    user_ids, item_ids = (np.array([f"{kind}{n}" for n in range(7)]) for kind in "ui")
    return Interactions(users, items, times, user_ids, item_ids, {})


def divided(rows: list[tuple[int, int, int]], protocol: ProtocolConfig) -> Split:
    try:
        return split(interactions(rows), protocol, "any")
    except DataError:
        assert max(Counter(user for user, _, _ in rows).values()) < protocol.min_interactions or (
            protocol.duplicates != "keep"
        )
        reject()


def rows_of(parts: Split) -> Counter[tuple[str, str]]:
    """All rows of the split, training and held out, by raw ids."""
    found: Counter[tuple[str, str]] = Counter()
    for u, user in enumerate(parts.user_ids.tolist()):
        train = parts.train_items[parts.indptr[u] : parts.indptr[u + 1]].tolist()
        assert train == sorted(train)
        assert train
        held = [int(i) for i in (parts.test_U[u], parts.validation_U[u]) if i >= 0]
        found.update((user, str(parts.item_ids[i])) for i in train + held)
    return found


@given(ROWS, PROTOCOLS)
def test_every_row_of_every_user_left_is_in_one_part(
    rows: list[tuple[int, int, int]], protocol: ProtocolConfig
) -> None:
    parts = divided(rows, protocol)
    pairs = Counter((f"u{user}", f"i{item}") for user, item, _ in rows)
    if protocol.duplicates != "keep":
        pairs = Counter(set(pairs))
    sizes = Counter(user for user, _ in pairs.elements())
    left = {user for user, size in sizes.items() if size >= protocol.min_interactions}
    assert rows_of(parts) == Counter(p for p in pairs.elements() if p[0] in left)
    assert set(parts.item_ids.tolist()) == {item for user, item in pairs if user in left}


@given(ROWS, PROTOCOLS)
def test_nothing_in_training_is_later_than_what_is_held_out(
    rows: list[tuple[int, int, int]], protocol: ProtocolConfig
) -> None:
    latest = replace(protocol, duplicates="last", min_interactions=1)
    parts = divided(rows, latest)
    time = {(f"u{user}", f"i{item}"): -2 for user, item, _ in rows}
    for user, item, at in rows:
        time[f"u{user}", f"i{item}"] = max(time[f"u{user}", f"i{item}"], at)
    for u, user in enumerate(parts.user_ids.tolist()):

        def key(item: int, user: str = user) -> tuple[int, int]:
            return -time[user, str(parts.item_ids[item])], item

        train = [key(i) for i in parts.train_items[parts.indptr[u] : parts.indptr[u + 1]]]
        held = [key(int(i)) for i in (parts.test_U[u], parts.validation_U[u]) if i >= 0]
        assert held + sorted(train) == sorted(held + train)


@given(ROWS, PROTOCOLS)
def test_own_items_are_the_distinct_items_of_the_rows(
    rows: list[tuple[int, int, int]], protocol: ProtocolConfig
) -> None:
    parts = divided(rows, protocol)
    for u in range(len(parts.user_ids)):
        own = parts.own_items[parts.own_indptr[u] : parts.own_indptr[u + 1]].tolist()
        train = parts.train_items[parts.indptr[u] : parts.indptr[u + 1]].tolist()
        held = [int(i) for i in (parts.test_U[u], parts.validation_U[u]) if i >= 0]
        assert own == sorted(set(train + held))


@given(st.integers(0, 50), st.integers(1, 12))
def test_shards_are_contiguous_and_even(num_users: int, num_nodes: int) -> None:
    bounds = [shard_bounds(num_users, n, num_nodes) for n in range(num_nodes)]
    assert [lo for lo, _ in bounds] == [0, *(hi for _, hi in bounds[:-1])]
    assert bounds[-1][1] == num_users
    sizes = [hi - lo for lo, hi in bounds]
    assert max(sizes) - min(sizes) <= 1
