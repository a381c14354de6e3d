"""Registration and the mapping from users to shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from fake_nodes import NUM_USERS, FakeNodes

from conf.tree import FederationConfig
from server_app.errors import NodeError
from server_app.exchange import Courier
from server_app.grid import LocalGrid
from server_app.nodes import NodeDirectory
from strategies.messages import Header, HelloReply

HEADER = Header("run", 0, "{}", "code-of-server")
Hello = Callable[[int, HelloReply], HelloReply]


def directory(
    num_nodes: int = 3, hello: Hello | None = None, code: str = "code-of-server", started: int = -1
) -> NodeDirectory:
    nodes = FakeNodes(code)
    if hello is not None:
        nodes.hello = hello
    grid = LocalGrid(num_nodes if started < 0 else started, nodes.app())
    federation = FederationConfig(num_nodes=num_nodes, register_timeout_s=0.3)
    return NodeDirectory(Courier(grid), HEADER, federation)


def refused(match: str, hello: Hello | None = None, **kwargs: object) -> None:
    with pytest.raises(NodeError, match=match):
        directory(hello=hello, **kwargs).register()  # type: ignore[arg-type]


def test_users_and_shards() -> None:
    nodes = directory()
    nodes.register()
    assert nodes.num_users == NUM_USERS
    assert nodes.num_items == 12
    assert list(nodes.shards) == ["shard-0", "shard-1", "shard-2"]
    parts = nodes.split(np.array([0, 6, 7, 13, 14, 19]))
    assert {k: v.tolist() for k, v in parts.items()} == {
        "shard-0": [0, 6],
        "shard-1": [7, 13],
        "shard-2": [14, 19],
    }
    assert nodes.split(np.array([8, 9])).keys() == {"shard-1"}
    assert len({nodes.node(key) for key in nodes.shards}) == 3
    assert nodes.shard_at(nodes.node("shard-1")) == "shard-1"


def test_shards_need_not_be_contiguous() -> None:
    def interleaved(index: int, reply: HelloReply) -> HelloReply:
        return replace(reply, users=np.arange(index, NUM_USERS, 3))

    nodes = directory(hello=interleaved)
    nodes.register()
    users = np.arange(NUM_USERS)
    for index, (key, part) in enumerate(nodes.split(users).items()):
        assert key == f"shard-{index}"
        assert np.array_equal(part, users[index::3])


def test_a_node_too_few_is_named_at_the_deadline() -> None:
    refused(r"1 of 3 nodes introduced themselves within 0.3 s .*federation\.num_nodes", started=1)


def test_no_node_at_all() -> None:
    refused("0 of 3 nodes", started=0)


def test_a_node_too_many_says_which_setting_to_change() -> None:
    refused(r"4 nodes are registered but federation\.num_nodes=3: set .*=4", started=4)


def test_other_code_is_refused_with_both_hashes_and_what_to_do() -> None:
    refused(r"code-of-node there, code-of-server here.*`fedrecgel stop`", code="code-of-node")


def test_another_catalogue_is_refused() -> None:
    def hello(index: int, reply: HelloReply) -> HelloReply:
        return replace(reply, catalogue="other") if index == 1 else reply

    refused("shards 'shard-0' and 'shard-1' have different catalogues", hello)


def test_a_shard_key_reported_twice_is_refused() -> None:
    refused("both report shard 'same'", lambda index, reply: replace(reply, shard_key="same"))


def test_a_user_on_two_shards_is_refused() -> None:
    def hello(index: int, reply: HelloReply) -> HelloReply:
        return replace(reply, users=np.append(reply.users, 13)) if index == 2 else reply

    refused("user 13 is on shards 'shard-1' and 'shard-2'", hello)


@pytest.mark.parametrize(("index", "gap"), [(0, 0), (1, 7)])
def test_a_gap_between_users_is_refused(index: int, gap: int) -> None:
    def hello(node: int, reply: HelloReply) -> HelloReply:
        return replace(reply, users=reply.users[1:]) if node == index else reply

    refused(f"no shard hosts user {gap}", hello)


def test_a_node_without_users_is_fine_as_long_as_all_are_covered() -> None:
    def hello(index: int, reply: HelloReply) -> HelloReply:
        users = np.arange(NUM_USERS) if index == 0 else np.empty(0, np.int64)
        return replace(reply, users=users)

    nodes = directory(hello=hello)
    nodes.register()
    assert nodes.split(np.array([3, 4])).keys() == {"shard-0"}


def test_a_node_that_raises_is_named_with_its_error() -> None:
    def hello(index: int, reply: HelloReply) -> HelloReply:
        raise FileNotFoundError("no such data file")

    refused("failed to introduce itself: FileNotFoundError: no such data file", hello)


def test_a_restarted_node_takes_its_shard_over() -> None:
    grid = LocalGrid(2, FakeNodes("code-of-server").app())
    nodes = NodeDirectory(Courier(grid), HEADER, FederationConfig(num_nodes=2))
    nodes.register()
    old = nodes.node("shard-1")
    new = grid.restart_node(old)
    nodes.refresh()
    assert nodes.node("shard-1") == new != old


def test_a_stranger_is_not_admitted_and_asked_once() -> None:
    calls: list[str] = []

    def hello(index: int, reply: HelloReply) -> HelloReply:
        calls.append(reply.shard_key)
        return replace(reply, shard_key="stranger") if len(calls) > 2 else reply

    fake = FakeNodes("code-of-server")
    fake.hello = hello
    grid = LocalGrid(2, fake.app())
    nodes = NodeDirectory(Courier(grid), HEADER, FederationConfig(num_nodes=2))
    nodes.register()
    stranger = grid.restart_node(nodes.node("shard-1"))
    nodes.refresh()
    nodes.refresh()
    assert len(calls) == 3
    assert "'stranger' is not the one of this run" in nodes.refused[stranger]


def test_a_restarted_node_without_its_private_state_is_not_admitted() -> None:
    fake = FakeNodes("code-of-server")
    fake.hello = lambda index, reply: replace(reply, new_run=True)
    grid = LocalGrid(2, fake.app())
    nodes = NodeDirectory(Courier(grid), HEADER, FederationConfig(num_nodes=2))
    nodes.register()
    old = nodes.node("shard-1")
    new = grid.restart_node(old)
    nodes.refresh()
    assert nodes.node("shard-1") == old
    assert "shard-1 lost the private state" in nodes.refused[new]


def test_a_stranger_does_not_bar_the_nodes_that_return_with_it() -> None:
    """Two nodes come back at once, one with other code: only that one is refused."""
    fake = FakeNodes("code-of-server")
    edited: list[int] = []
    fake.hello = lambda index, reply: replace(reply, code="edited") if index in edited else reply
    grid = LocalGrid(3, fake.app())
    nodes = NodeDirectory(Courier(grid), HEADER, FederationConfig(num_nodes=3))
    nodes.register()
    edited.append(1)
    stranger, healthy = (grid.restart_node(nodes.node(f"shard-{i}")) for i in (1, 2))
    nodes.refresh()
    assert nodes.node("shard-2") == healthy
    assert nodes.refused.keys() == {stranger}
    assert "other code" in nodes.refused[stranger]
