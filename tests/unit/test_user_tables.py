"""Tables by user on disk: versions, resumes, pruning, and products a block at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import user_tables
from strategies.user_tables import NO_TABLE, UserTables

SHAPE = (3, 2)


def table(value: float) -> np.ndarray:
    """A table whose entries are all ``value``."""
    return np.full(SHAPE, value, dtype=np.float32)


def put(tables: UserTables, round_: int, values: dict[int, float]) -> None:
    """A table for each user, all of whose entries are the value."""
    stacked = np.stack([table(value) for value in values.values()])
    tables.put(round_, np.array(list(values)), stacked)


def values_of(tables: UserTables) -> dict[int, tuple[float, int]]:
    """Each user's value, and the round it is of."""
    users = tables.users()
    if not len(users):
        return {}
    found_UID, rounds_U = tables.latest(users)
    values = [own.reshape(-1) for own in found_UID]
    assert all((own == own[0]).all() for own in values)
    pairs = zip(values, rounds_U, strict=True)
    return {int(u): (float(v[0]), int(r)) for u, (v, r) in zip(users, pairs, strict=True)}


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_table_of_a_user_counts(tmp_path: Path) -> None:
    tables = UserTables(tmp_path)
    put(tables, 1, {7: 1, 2: 2})
    put(tables, 4, {2: 3, 5: 4})
    expected = {2: (3.0, 4), 5: (4.0, 4), 7: (1.0, 1)}
    assert values_of(tables) == expected
    assert values_of(UserTables(tmp_path)) == expected, "opened again"
    with pytest.raises(KeyError):
        tables.latest(np.array([3]))


def test_users_may_share_a_table_and_lose_it(tmp_path: Path) -> None:
    tables = UserTables(tmp_path)
    tables.put(1, np.array([4, 6, 9]), table(1)[None], np.array([0, NO_TABLE, 0]))
    assert values_of(tables) == {4: (1.0, 1), 9: (1.0, 1)}
    shared = tables.tables([4, 6, 8, 9])
    assert list(shared) == [4, 9]
    assert shared[4] is shared[9]
    tables.put(2, np.array([4]), np.empty((0, *SHAPE)), np.array([NO_TABLE]))
    for opened in (tables, UserTables(tmp_path)):
        assert values_of(opened) == {9: (1.0, 1)}
        with pytest.raises(KeyError):
            opened.latest(np.array([4]))
    tables.forget_after(1)
    assert values_of(tables) == {4: (1.0, 1), 9: (1.0, 1)}


def test_a_round_that_is_put_again_replaces_what_came_since(tmp_path: Path) -> None:
    tables = UserTables(tmp_path)
    for round_ in (1, 2, 3):
        put(tables, round_, {0: round_, round_: 9})
    before = tables.stamps([0])
    put(tables, 2, {0: 5})
    assert values_of(tables) == {0: (5.0, 2), 1: (9.0, 1)}
    assert values_of(UserTables(tmp_path)) == values_of(tables)
    assert tables.stamps([0]) != before


def test_a_resume_forgets_newer_rounds(tmp_path: Path) -> None:
    tables = UserTables(tmp_path)
    put(tables, 1, {0: 1, 1: 1})
    put(tables, 2, {1: 2, 2: 2})
    again = UserTables(tmp_path)
    again.forget_after(1)
    assert values_of(again) == {0: (1.0, 1), 1: (1.0, 1)}
    again.forget_after(0)
    assert values_of(again) == {}
    assert files(tmp_path) == []


def test_half_a_write_is_no_table(tmp_path: Path) -> None:
    """What a process leaves that dies before the rename."""
    put(UserTables(tmp_path), 1, {0: 1})
    whole = (tmp_path / files(tmp_path)[0]).read_bytes()
    (tmp_path / ".round-000000002.tables.tmp").write_bytes(whole[:100])
    assert values_of(UserTables(tmp_path)) == {0: (1.0, 1)}
    assert files(tmp_path) == ["round-000000001.tables"]


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    put(UserTables(tmp_path), 1, {0: 1})
    path = tmp_path / files(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"mmap|size"):
        UserTables(tmp_path)


def test_pruning_drops_files_and_cuts_those_of_which_little_is_needed(tmp_path: Path) -> None:
    """Round 3 is kept. User 0 has 1, 2, 3 and needs 3; users 1 and 2 need round 1; 3 has 2."""
    tables = UserTables(tmp_path)
    put(tables, 1, {0: 1, 1: 1, 2: 1, 8: 1, 9: 1})
    put(tables, 2, {0: 2, 8: 2, 9: 2})
    put(tables, 3, {0: 3, 8: 3, 9: 3})
    size = (tmp_path / "round-000000001.tables").stat().st_size
    before = values_of(tables)
    tables.prune([3])
    assert files(tmp_path) == ["round-000000001.tables", "round-000000003.tables"]
    # Three users' entries of 16 bytes and three tables of 24 bytes are gone.
    assert (tmp_path / "round-000000001.tables").stat().st_size == size - 3 * 16 - 3 * 24
    assert values_of(tables) == values_of(UserTables(tmp_path)) == before


def test_users_and_rows_are_checked(tmp_path: Path) -> None:
    tables = UserTables(tmp_path)
    with pytest.raises(ValueError, match="distinct"):
        tables.put(1, np.array([1, 1]), np.zeros((2, *SHAPE)))
    with pytest.raises(ValueError, match=r"rows must lie in -1\.\.0"):
        tables.put(1, np.array([1]), np.zeros((1, *SHAPE)), np.array([1]))


Round = dict[int, int | None]


@settings(max_examples=60, deadline=None)
@given(
    rounds=st.lists(
        st.dictionaries(st.integers(0, 4), st.one_of(st.none(), st.integers(0, 2)), max_size=5),
        min_size=1,
        max_size=7,
    ),
    kept=st.sets(st.integers(0, 7), min_size=1, max_size=2),
    reopen=st.booleans(),
)
def test_a_resume_from_a_kept_round_sees_what_was_there(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[Round], kept: set[int], reopen: bool
) -> None:
    """Whatever is pruned, each kept round's state and the newest one are as they were."""
    folder = tmp_path_factory.mktemp("tables")
    tables, state, states = UserTables(folder), dict[int, int](), [dict[int, int]()]
    for number, given_ in enumerate(rounds, start=1):
        groups = sorted({g for g in given_.values() if g is not None})
        stacked = np.array([table(10 * number + g) for g in groups]).reshape(-1, *SHAPE)
        rows = [NO_TABLE if g is None else groups.index(g) for g in given_.values()]
        tables.put(number, np.array(list(given_), dtype=int), stacked, np.array(rows, dtype=int))
        state = state | {u: 10 * number + g for u, g in given_.items() if g is not None}
        state = {u: v for u, v in state.items() if u not in given_ or given_[u] is not None}
        states.append(state)
    tables.prune(sorted(kept))
    tables = UserTables(folder) if reopen else tables
    asked = sorted({round_ for round_ in kept if round_ <= len(rounds)} | {len(rounds)})
    for round_ in asked:
        seen = {u: int(t.flat[0]) for u, t in tables.tables(range(5), round_).items()}
        assert seen == states[round_]
    for round_ in reversed(asked):
        tables.forget_after(round_)
        assert {u: v for u, (v, _) in values_of(tables).items()} == states[round_]


@pytest.mark.parametrize("users_a_block", [1, 2, 5])
def test_products_a_block_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, users_a_block: int
) -> None:
    """Against plain products of the stacked tables, with users in several files."""
    monkeypatch.setattr(user_tables, "BLOCK_VALUES", 6 * users_a_block)
    rng = np.random.default_rng(0)
    stacked = rng.normal(size=(5, *SHAPE)).astype(np.float32)
    tables = UserTables(tmp_path)
    tables.put(1, np.array([3, 1]), stacked[[1, 0]])
    tables.put(2, np.array([9, 4, 7]), stacked[[4, 2, 3]])
    users = np.array([1, 3, 4, 7, 9])
    wide_UX = stacked.reshape(5, -1).astype(np.float64)
    # Six products of float32 values are exact in float64; their sum errs in the last digit.
    got = tables.gram(users[[0, 3, 4]], users)
    np.testing.assert_allclose(got, wide_UX[[0, 3, 4]] @ wide_UX.T, rtol=1e-13, atol=1e-13)
    weights_KU = rng.normal(size=(70, 5))
    sums = [sums_BX for _, sums_BX in tables.weighted_sums(weights_KU, users)]
    # Five terms in float32: five units in the last place of about 2.
    np.testing.assert_allclose(np.concatenate(sums), weights_KU @ wide_UX, atol=5 * 1.2e-7 * 4)
