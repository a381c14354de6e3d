"""The in-process grid behaves as Flower's do."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from server_app.exchange import Courier, content_bytes
from server_app.grid import LocalGrid


def counting_app() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        index = int(context.node_config["partition-id"])
        calls = int(context.state.config_records.get("calls", {"n": 0})["n"]) + 1
        context.state["calls"] = ConfigRecord({"n": calls})
        values = message.content.config_records["in"]["values"]
        assert isinstance(values, list)
        values.append(99)  # must not reach the server's own record
        reply = ConfigRecord(
            {"index": index, "calls": calls, "nodes": context.node_config["num-partitions"]}
        )
        return Message(RecordDict({"out": reply}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        raise KeyError("what went wrong")

    return app


def request(node: int, kind: str = "train") -> Message:
    return Message(RecordDict({"in": ConfigRecord({"values": [1, 2]})}), node, kind)


def test_every_node_answers_with_its_partition_and_state() -> None:
    grid = LocalGrid(3, counting_app())
    for call in (1, 2):
        replies = list(grid.send_and_receive([request(n) for n in grid.get_node_ids()]))
        out = [dict(reply.content.config_records["out"]) for reply in replies]
        assert out == [{"index": i, "calls": call, "nodes": 3} for i in range(3)]


def test_replies_name_the_message_they_answer() -> None:
    grid = LocalGrid(2, counting_app())
    messages = [request(n) for n in grid.get_node_ids()]
    ids = list(grid.push_messages(messages))
    assert len(set(ids)) == 2
    [reply] = grid.pull_messages([ids[1]])
    assert reply.metadata.reply_to_message_id == ids[1]
    assert reply.metadata.src_node_id == messages[1].metadata.dst_node_id
    assert list(grid.pull_messages([ids[1]])) == []


def test_nothing_mutable_is_shared() -> None:
    grid = LocalGrid(1, counting_app())
    message = request(next(iter(grid.get_node_ids())))
    list(grid.send_and_receive([message]))
    assert message.content.config_records["in"]["values"] == [1, 2]


def test_a_client_exception_is_an_error_reply_with_its_traceback() -> None:
    grid = LocalGrid(1, counting_app())
    [reply] = grid.send_and_receive([request(next(iter(grid.get_node_ids())), "evaluate")])
    assert reply.has_error()
    assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert "what went wrong" in reply.error.reason
    assert "Traceback" in reply.error.reason


def test_an_unregistered_message_type_is_an_error_reply() -> None:
    grid = LocalGrid(1, counting_app())
    [reply] = grid.send_and_receive([request(next(iter(grid.get_node_ids())), "query.nothing")])
    assert reply.has_error()


def test_shuffled_order_is_another_order_with_the_same_replies() -> None:
    def order(seed: int | None) -> list[int]:
        grid = LocalGrid(8, counting_app(), shuffle_seed=seed)
        replies = grid.send_and_receive([request(n) for n in grid.get_node_ids()])
        return [int(r.content.config_records["out"]["index"]) for r in replies]

    assert order(None) == list(range(8))
    assert order(1) != list(range(8))
    assert sorted(order(1)) == list(range(8))


def test_a_restarted_node_has_a_new_id_and_no_flower_state() -> None:
    grid = LocalGrid(1, counting_app())
    old = next(iter(grid.get_node_ids()))
    list(grid.send_and_receive([request(old)]))
    new = grid.restart_node(old)
    assert list(grid.get_node_ids()) == [new] != [old]
    [reply] = grid.send_and_receive([request(new)])
    assert reply.content.config_records["out"]["calls"] == 1


def test_the_courier_names_nodes_that_are_not_connected() -> None:
    grid = LocalGrid(1, counting_app())
    node = next(iter(grid.get_node_ids()))
    delivery = Courier(grid).exchange([request(node), request(12345)], deadline_s=5.0)
    assert len(delivery.replies) == 1
    assert delivery.unreachable == [12345]
    assert delivery.silent == []


def test_content_bytes_counts_the_payload() -> None:
    array = Array(np.zeros(1000, np.float32))
    record = RecordDict({"a": ArrayRecord({"x": array}), "c": ConfigRecord({"k": b"12345678"})})
    assert content_bytes(record) >= 4000 + 8
    assert content_bytes(record) < 4000 + 500


@pytest.mark.parametrize("nodes", [1, 5])
def test_node_ids_are_random(nodes: int) -> None:
    first, second = LocalGrid(nodes, counting_app()), LocalGrid(nodes, counting_app())
    assert not set(first.get_node_ids()) & set(second.get_node_ids())


# ---- several workers -----------------------------------------------------------------------
class Meeting:
    """A client that waits in ``train`` until so many nodes are there, or for the gate."""

    def __init__(self, parties: int) -> None:
        self.app, self.gate = ClientApp(), threading.Event()
        self.here: list[int] = []
        barrier = threading.Barrier(parties, timeout=20)

        @self.app.train()
        def train(message: Message, context: Context) -> Message:
            self.here.append(message.metadata.dst_node_id)
            barrier.wait()
            return Message(RecordDict(), reply_to=message)

        @self.app.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            self.here.append(message.metadata.dst_node_id)
            assert self.gate.wait(20)
            return Message(RecordDict(), reply_to=message)


def test_workers_run_nodes_at_the_same_time() -> None:
    """With one worker the first node would wait for the second for ever."""
    grid = LocalGrid(4, Meeting(2).app, workers=2)
    replies = list(grid.send_and_receive([request(n) for n in grid.get_node_ids()]))
    assert len(replies) == 4
    assert not any(reply.has_error() for reply in replies)


def test_no_more_nodes_at_once_than_workers() -> None:
    meeting = Meeting(2)
    grid = LocalGrid(5, meeting.app, workers=2)
    ids = list(grid.push_messages([request(n, "evaluate") for n in grid.get_node_ids()]))
    pulled: list[Message] = []
    server = threading.Thread(target=lambda: pulled.extend(grid.pull_messages(ids)))
    server.start()
    while len(meeting.here) < 2:
        time.sleep(0.001)
    time.sleep(0.05)
    assert len(meeting.here) == 2
    meeting.gate.set()
    server.join(20)
    assert pulled
    while len(pulled) < 5:
        pulled.extend(grid.pull_messages(ids))
    assert list(grid.pull_messages(ids)) == []


def test_a_node_works_on_one_message_at_a_time() -> None:
    """Two messages to one node: the second is begun when the first is answered."""
    meeting = Meeting(2)
    grid = LocalGrid(2, meeting.app, workers=2)
    one, two = grid.get_node_ids()
    grid_messages = [request(one, "evaluate"), request(one, "evaluate"), request(two, "evaluate")]
    ids = list(grid.push_messages(grid_messages))
    timer = threading.Timer(0.1, meeting.gate.set)
    timer.start()
    assert grid.pull_messages(ids)
    assert meeting.here[:2] == [one, two]


def test_an_unwanted_reply_waits_to_be_asked_for() -> None:
    meeting = Meeting(1)
    grid = LocalGrid(2, meeting.app, workers=2)
    ids = list(grid.push_messages([request(n) for n in grid.get_node_ids()]))
    found = [*grid.pull_messages(ids[:1]), *grid.pull_messages(ids[1:])]
    assert [reply.metadata.reply_to_message_id for reply in found] == ids


def test_an_exception_in_a_worker_is_an_error_reply() -> None:
    grid = LocalGrid(2, counting_app(), workers=2)
    replies = grid.send_and_receive([request(n, "evaluate") for n in grid.get_node_ids()])
    assert [reply.has_error() for reply in replies] == [True, True]
