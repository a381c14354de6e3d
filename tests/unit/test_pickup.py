"""Messages of a simulation are handed over by the server itself, each once."""

from __future__ import annotations

import ast
import inspect
import threading
from collections.abc import Iterator
from queue import Queue

import pytest
from flwr.app import Message, RecordDict
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.linkstate import InMemoryLinkState
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from server_app import pickup
from server_app.grid import LocalGrid  # sets what Flower's Message takes from the process
from server_app.pickup import hand_over


class State:
    """Gives out messages as Flower's link state does, which marks them after it has looked."""

    def __init__(self, messages: list[Message]) -> None:
        self.message_ins_store = dict(enumerate(messages))
        self.asked = 0
        self.looked = threading.Event()
        self.mark = threading.Event()
        """Whoever has looked waits for it, briefly."""
        self.mark.set()

    def get_message_ins(self, node_id: int, limit: int | None) -> list[Message]:
        self.asked += 1
        fits = [m for m in self.waiting() if m.metadata.dst_node_id == node_id][:limit]
        self.looked.set()
        self.mark.wait(0.2)
        for message in fits:
            message.metadata.delivered_at = "now"
        return fits

    def waiting(self) -> list[Message]:
        messages = self.message_ins_store.values()
        return [m for m in messages if m.metadata.delivered_at == ""]


@pytest.fixture
def messages() -> list[Message]:
    LocalGrid(1)
    return [Message(RecordDict(), node, "train") for node in (11, 22)]


@pytest.fixture
def simulation(messages: list[Message]) -> Iterator[tuple[State, Queue[Message]]]:
    """A thread like Flower's that never gets to look."""
    state, queue, stop = State(messages), Queue[Message](), threading.Event()

    def add_messages_to_queue(
        state: State, queue: Queue[Message], nodes: dict[int, int], stop: threading.Event
    ) -> None:
        stop.wait(20)

    thread = threading.Thread(target=add_messages_to_queue, args=(state, queue, {}, stop))
    thread.start()
    assert hand_over(messages) == 0 and queue.empty()  # the first time is Flower's
    yield state, queue
    stop.set()
    thread.join(20)


def test_pushed_messages_are_in_the_queue(
    simulation: tuple[State, Queue[Message]], messages: list[Message]
) -> None:
    state, queue = simulation
    assert hand_over(messages) == 2
    assert [queue.get_nowait() for _ in messages] == messages
    assert not state.waiting()


def test_what_flower_took_is_not_handed_over_again(
    simulation: tuple[State, Queue[Message]], messages: list[Message]
) -> None:
    state, queue = simulation
    queue.put(state.get_message_ins(11, 1)[0])
    assert hand_over(messages) == 1
    assert [queue.get_nowait() for _ in messages] == messages


def test_two_threads_do_not_get_the_same_message(
    simulation: tuple[State, Queue[Message]], messages: list[Message]
) -> None:
    """Flower's thread has looked at the message, but not marked it, when the server comes."""
    state, queue = simulation
    state.mark.clear()
    flower = threading.Thread(target=lambda: queue.put(state.get_message_ins(11, 1)[0]))
    flower.start()
    assert state.looked.wait(20)
    hand_over(messages)
    flower.join(20)
    assert sorted(m.metadata.dst_node_id for m in queue.queue) == [11, 22]


def test_where_nothing_waits_flower_does_not_search(
    simulation: tuple[State, Queue[Message]], messages: list[Message]
) -> None:
    state, _ = simulation
    hand_over(messages)
    asked = state.asked
    assert state.get_message_ins(11, 1) == [] and state.asked == asked


def test_without_a_simulation_nothing_happens(messages: list[Message]) -> None:
    assert hand_over(messages) == 0


def test_the_installed_flower_has_that_state() -> None:
    """Its messages by id, and the keyword arguments that its method is called with."""
    state = InMemoryLinkState(NoOpFederationManager(), ObjectStoreFactory().store())
    assert state.message_ins_store == {} and pickup._is_state(state)
    parameters = list(inspect.signature(state.get_message_ins).parameters)
    assert parameters[:2] == ["node_id", "limit"]


def test_the_installed_flower_has_that_thread() -> None:
    """What ``hand_over`` relies on: the function's name and arguments, and that it only polls."""
    function = vce_api.add_messages_to_queue
    assert function.__name__ == pickup.EXTRACTOR
    assert list(inspect.signature(function).parameters)[:2] == ["state", "queue"]
    starts = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(vce_api.run_api)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "threading.Thread"
    ]
    keywords = [{k.arg: ast.unparse(k.value) for k in call.keywords} for call in starts]
    (ours,) = [k for k in keywords if k.get("target") == pickup.EXTRACTOR]
    assert ours["args"].replace(" ", "").startswith("(state,messageins_queue,")
