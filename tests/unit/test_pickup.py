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

from server_app import pickup
from server_app.grid import LocalGrid  # sets what Flower's Message takes from the process
from server_app.pickup import hand_over


class State:
    """Messages by node; gives out each once, as Flower's link state does."""

    def __init__(self, messages: list[Message]) -> None:
        self.waiting = list(messages)

    def get_message_ins(self, node_id: int, limit: int | None) -> list[Message]:
        found = [m for m in self.waiting if m.metadata.dst_node_id == node_id][:limit]
        self.waiting = [m for m in self.waiting if m not in found]
        return found


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
    yield state, queue
    stop.set()
    thread.join(20)


def test_pushed_messages_are_in_the_queue(
    simulation: tuple[State, Queue[Message]], messages: list[Message]
) -> None:
    state, queue = simulation
    assert hand_over(messages) == 2
    assert [queue.get_nowait() for _ in messages] == messages
    assert not state.waiting


def test_what_flower_took_is_not_handed_over_again(
    simulation: tuple[State, Queue[Message]], messages: list[Message]
) -> None:
    state, queue = simulation
    queue.put(state.get_message_ins(11, 1)[0])
    assert hand_over(messages) == 1
    assert [queue.get_nowait() for _ in messages] == messages


def test_without_a_simulation_nothing_happens(messages: list[Message]) -> None:
    assert hand_over(messages) == 0


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
