"""What the processes of a sweep work on, and how a task ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

Report = Callable[[int], None]
"""Called with the number of rounds that are done."""


class Task(Protocol):
    """A piece of work that another process can do. It travels by pickle."""

    @property
    def label(self) -> str:
        """What it is called in lines and files; no two tasks of a sweep are called the same."""

    @property
    def size(self) -> int:
        """How much work it is, in rounds."""

    @property
    def made_of(self) -> dict[str, Any]:
        """Plain values that decide the outcome: with others it is worth another try."""

    def make(self, report: Report) -> None:
        """Do it. Whatever it raises is a failure of this task alone."""


@dataclass(frozen=True)
class Failure:
    """Why a task has no outcome."""

    reason: str
    """First line of the error; the name of its type stands before it unless the error is ours."""
    kind: str
    """Name of the error's type."""
    deterministic: bool
    """It would fail again in the same way: a round that cannot be completed."""
    detail: str = ""
    """The whole text, with where it was raised."""

    @classmethod
    def of(cls, error: BaseException, detail: str) -> Failure:
        """Of an error that a task raised."""
        from conf.build import ConfigError
        from server_app.errors import RoundError, ServerError

        lines = str(error).strip().splitlines() or ["no reason given"]
        ours = isinstance(error, ServerError | ConfigError)
        reason = lines[0] if ours else f"{type(error).__name__}: {lines[0]}"
        return cls(reason, type(error).__name__, isinstance(error, RoundError), detail)
