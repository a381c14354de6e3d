"""Pulling replies: one that hangs holds up nothing but itself."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.superlink.grid.http_grid import HttpGrid

from server_app import pulling
from server_app.grid import LocalGrid
from server_app.pulling import Puller


class FakeGrid(HttpGrid):
    """Gives every reply out once; that to ``stuck`` only when it is released."""

    def __init__(self, replies: dict[str, Message], stuck: str = "") -> None:
        self.replies, self.stuck = dict(replies), stuck
        self.released = threading.Event()
        self.lock = threading.Lock()
        self.unavailable: dict[str, Message] = {}

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        with self.lock:
            taken = {i: self.replies.pop(i) for i in list(message_ids) if i in self.replies}
            gone = [self.unavailable[i] for i in message_ids if i in self.unavailable]
        if self.stuck in taken:
            self.released.wait(30)
        return [*taken.values(), *gone]


def messages(*names: str) -> dict[str, Message]:
    """A reply by the name of what it answers."""
    LocalGrid(1)  # tells Flower's Message who this process is
    replies = {}
    for name in names:
        request = Message(RecordDict(), 7, "train")
        request.metadata.__dict__["_message_id"] = name
        replies[name] = Message(RecordDict(), reply_to=request)
    return replies


def origins(replies: Iterable[Message]) -> list[str]:
    return sorted(reply.metadata.reply_to_message_id for reply in replies)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "PATIENCE_S", 0.2)


def test_replies_arrive() -> None:
    puller = Puller(FakeGrid(messages("a", "b")))
    assert origins(puller.pull({"a", "b", "c"})) == ["a", "b"]
    assert puller.pull({"c"}) == []


def test_a_stuck_reply_does_not_hold_up_the_others() -> None:
    grid = FakeGrid(messages("stuck"), "stuck")
    puller = Puller(grid)
    assert puller.pull({"stuck", "late"}) == []
    grid.replies |= messages("late")
    assert origins(puller.pull({"stuck", "late"})) == ["late"]
    grid.released.set()
    found = list[str]()
    while not found:
        found = origins(puller.pull({"stuck"}))
    assert found == ["stuck"]


def test_what_another_pull_has_taken_is_not_lost() -> None:
    """Flower tells the second pull that the message is unavailable: the first has it."""
    grid = FakeGrid(messages("a"), "a")
    (reply,) = messages("a").values()
    error = Error(ErrorCode.MESSAGE_UNAVAILABLE, "gone")
    grid.unavailable["a"] = _error(error, "a")
    puller = Puller(grid)
    grid.unavailable, told = {}, grid.unavailable
    assert puller.pull({"a"}) == []
    grid.unavailable = told
    assert puller.pull({"a"}) == []
    grid.unavailable = {}
    grid.released.set()
    found = list[Message]()
    while not found:
        found = puller.pull({"a"})
    assert not any(message.has_error() for message in found)
    assert reply.has_content()


def test_a_message_that_is_really_gone_is_told() -> None:
    grid = FakeGrid({})
    LocalGrid(1)
    grid.unavailable["a"] = _error(Error(ErrorCode.MESSAGE_UNAVAILABLE, "gone"), "a")
    (found,) = Puller(grid).pull({"a"})
    assert found.error.code == ErrorCode.MESSAGE_UNAVAILABLE


def test_an_error_of_the_grid_is_raised_where_replies_are_awaited() -> None:
    class Broken(FakeGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            raise ConnectionError("no route")

    with pytest.raises(ConnectionError, match="no route"):
        Puller(Broken({})).pull({"a"})


def test_no_more_than_a_few_wait_at_once() -> None:
    grid = FakeGrid(messages(*(str(n) for n in range(20))), "")
    grid.stuck = "0"
    puller = Puller(grid)
    for n in range(20):
        grid.stuck = str(n)
        puller.pull({str(n)})
    assert len(puller._running) == pulling.MAX_PULLS
    grid.released.set()


def _error(error: Error, name: str) -> Message:
    request = Message(RecordDict(), 7, "train")
    request.metadata.__dict__["_message_id"] = name
    return Message(error, reply_to=request)
