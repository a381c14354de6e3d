"""The table of shards: who may be added, and who hosts whom."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from server_app.errors import NodeError
from server_app.roster import Roster, majority_first, same_shard
from strategies.messages import HelloReply


def hello(key: str, users: list[int], population: int = 10) -> HelloReply:
    return HelloReply(key, np.array(users, dtype=np.int64), "code", "data", "items", 12, population)


def roster(*replies: HelloReply) -> Roster:
    found = Roster()
    for node, reply in enumerate(replies):
        found.add(node, reply)
    return found


def test_shards_may_come_in_any_order_and_leave_gaps() -> None:
    found = roster(hello("b", [7, 3]), hello("a", [0]))
    assert list(found.shards) == ["a", "b"]
    assert found.users.tolist() == [0, 3, 7]
    assert found.num_users == 3
    assert found.missing().tolist() == [1, 2, 4, 5, 6, 8, 9]
    parts = found.split(np.array([7, 0, 3]))
    assert {key: users.tolist() for key, users in parts.items()} == {"a": [0], "b": [7, 3]}
    found.add(9, hello("aa", [5]))
    assert found.split(np.array([0, 5, 7])).keys() == {"a", "aa", "b"}
    assert found.node("b") == 0
    found.move("b", 44)
    assert (found.node("b"), found.shard_at(44), found.shard_at(0)) == (44, "b", "unknown")


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (hello("a", [4]), "nodes 0 and 1 both report shard 'a'"),
        (hello("b", [4, 2]), "user 2 is on shards 'a' and 'b'"),
        (hello("b", [10]), "reports user 10 of a federation of 10"),
        (hello("b", [-1]), "reports user -1"),
        (hello("b", [4, 4]), "reports a user twice"),
        (hello("b", [4], population=11), "10 and 11 users"),
        (replace(hello("b", [4]), catalogue="others"), "different catalogues"),
    ],
    ids=str,
)
def test_what_does_not_fit_changes_nothing(reply: HelloReply, words: str) -> None:
    found = roster(hello("a", [1, 2]))
    with pytest.raises(NodeError, match=words):
        found.add(1, reply)
    assert list(found.shards) == ["a"]
    assert found.users.tolist() == [1, 2]
    assert found.node("a") == 0


def test_the_odd_one_out_comes_last() -> None:
    odd = replace(hello("a", [0]), catalogue="others")
    replies = {5: odd, 3: hello("c", [1]), 4: hello("b", [2])}
    assert [node for node, _ in majority_first(replies)] == [4, 3, 5]


def test_a_shard_is_the_same_only_with_its_users_and_data() -> None:
    known = hello("a", [1, 2])
    assert same_shard(known, hello("a", [1, 2]))
    assert same_shard(known, hello("a", [1]))  # user 2 was forgotten
    assert not same_shard(known, hello("a", [1, 2, 3]))
    assert not same_shard(known, replace(known, data="others"))
    assert not same_shard(known, replace(known, num_items=13))
