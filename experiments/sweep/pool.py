"""Processes that work on tasks, one task each at a time; one that is killed loses its task alone.

Results travel by pipe, and so do the rounds that are done. Ctrl-C is the parent's business: the
children ignore it and are ended by the parent, and by themselves when there is no parent any more.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from experiments.sweep.tasks import Failure, Task

END_S = 5.0
"""A child that was told to end is given this long."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""One thread a child unless the environment says otherwise: several run at once, and sums depend
on the number of threads."""


@dataclass(frozen=True)
class Progressed:
    """A task has begun, or has done so many rounds."""

    task: Task
    rounds: int


@dataclass(frozen=True)
class Ended:
    """A task is over."""

    task: Task
    failure: Failure | None


Event = Progressed | Ended


def work(tasks: Sequence[Task], processes: int, log: Path) -> Iterator[Event]:
    """Do all tasks, as many at once as there are processes; yields what happens as it does.

    The children's own output goes to ``log``. When the iteration is given up, by Ctrl-C or
    otherwise, the children are ended first.
    """
    waiting = deque(tasks)
    children: list[_Child] = []
    try:
        while waiting or any(child.task for child in children):
            children = [child for child in children if child.is_alive or child.task]
            while waiting and len(children) < min(processes, len(tasks)):
                children.append(_Child(log))
            for child in children:
                if child.task is None and waiting and child.give(waiting[0]):
                    yield Progressed(waiting.popleft(), 0)
            ready = wait([child.pipe for child in children if child.task])
            for child in children:
                if child.pipe in ready:
                    yield from child.heard()
    finally:
        _end(children)


class _Child:
    """A process and what it works on."""

    def __init__(self, log: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, far = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_serve, args=(far, log), name="sweep", daemon=True
        )
        with _one_thread(), _no_interrupt():
            self._process.start()
        far.close()  # else its end would not be noticed
        self.task: Task | None = None

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def give(self, task: Task) -> bool:
        """Hand over a task; False where the process has ended meanwhile."""
        try:
            self.pipe.send(task)
        except (BrokenPipeError, ConnectionResetError):
            self._process.join()
            return False
        self.task = task
        return True

    def heard(self) -> Iterator[Event]:
        """What the process says of its task, or that it has ended without a word."""
        assert self.task is not None
        task = self.task
        try:
            said: int | Failure | None = self.pipe.recv()
        except (EOFError, OSError):
            self._process.join(END_S)
            said = _lost(self._process.exitcode)
        if isinstance(said, int):
            yield Progressed(task, said)
            return
        self.task = None
        yield Ended(task, said)

    def end(self) -> None:
        self._process.terminate()

    def join(self) -> None:
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.pipe.close()


def _end(children: Sequence[_Child]) -> None:
    for child in children:
        child.end()
    for child in children:
        child.join()


def _lost(exitcode: int | None) -> Failure:
    if exitcode is not None and exitcode < 0:
        with suppress(ValueError):
            name = signal.Signals(-exitcode).name
            hint = "; the system may have run out of memory" if name == "SIGKILL" else ""
            return Failure(f"its process was ended by {name}{hint}", "ProcessLost", False)
    return Failure(f"its process ended with status {exitcode}", "ProcessLost", False)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The environment that a child starts with; it is read when its libraries are loaded."""
    added = [name for name in THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """A child is born with Ctrl-C held back, and ignores it once it can; here it comes after."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, log: Path) -> None:
    """Work in a child: a task, its rounds, its end; until there is no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _redirect(log)
    while True:
        try:
            task: Task = pipe.recv()
        except EOFError:
            return
        pipe.send(_outcome(task, pipe))


def _outcome(task: Task, pipe: Connection) -> Failure | None:
    try:
        task.make(pipe.send)
    except Exception as error:  # noqa: BLE001  the other tasks go on
        return Failure.of(error, traceback.format_exc())
    return None


def _end_with_parent() -> None:
    """End at once when the parent has: a run that is cut off can be continued."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _redirect(log: Path) -> None:
    """Output of libraries, and of a crash, must not tear the parent's bar."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
