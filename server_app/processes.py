"""Trees of processes: who descends from whom, and ending a tree that is ours."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

KILLED_S, PAUSE_S = 5.0, 0.05


@dataclass(frozen=True)
class Process:
    """A process for as long as it lives: ids are reused, an id with its start time is not."""

    pid: int
    started: str


def process(pid: int) -> Process | None:
    """The living process with this id."""
    return next((found for found in _table() if found.pid == pid), None)


def descendants(roots: Iterable[Process]) -> set[Process]:
    """The living children of ``roots``, their children, and so on."""
    table = _table()
    found: set[Process] = set()
    parents = {root.pid for root in roots if root in table}
    while parents:
        children = {child for child, parent in table.items() if parent in parents} - found
        found |= children
        parents = {child.pid for child in children}
    return found


def end_trees(roots: Iterable[Process], grace_s: float) -> None:
    """SIGTERM to ``roots``; what is left of them and their descendants after it: SIGKILL.

    The descendants are noted before the first signal, because those of a process that ended
    cannot be told from anybody else's.
    """
    roots = set(roots)
    tree = roots | descendants(roots)
    for root in roots:
        _signal(root, signal.SIGTERM)
    tree = _wait(tree, grace_s)
    for left in tree:
        _signal(left, signal.SIGKILL)
    _wait(tree, KILLED_S)


def _wait(tree: set[Process], timeout_s: float) -> set[Process]:
    """Who of the tree, and of whom it started meanwhile, still lives after the wait."""
    deadline = time.monotonic() + timeout_s
    while True:
        tree = (tree | descendants(tree)) & _table().keys()
        if not tree or time.monotonic() >= deadline:
            return tree
        time.sleep(PAUSE_S)


def _signal(target: Process, sign: signal.Signals) -> None:
    if target in _table():
        with contextlib.suppress(ProcessLookupError):
            os.kill(target.pid, sign)


def _table() -> dict[Process, int]:
    """All processes but zombies, each with the id of its parent."""
    if not Path("/proc/self/stat").exists():
        return _table_of_ps()
    table = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                # The name of the program, in brackets, may hold anything.
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    table[Process(int(folder.name), fields[19])] = int(fields[1])
    return table


def _table_of_ps() -> dict[Process, int]:
    columns = ["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="]
    shown = subprocess.run(columns, capture_output=True, text=True, check=True)
    rows = [line.split(None, 3) for line in shown.stdout.splitlines()]
    return {
        Process(int(pid), started.strip()): int(parent)
        for pid, parent, state, started in rows
        if not state.startswith("Z")
    }
