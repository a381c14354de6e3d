"""How a failure on a node is told to the server: what, where in the code, no user's data."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from models.types import IntArray

NAMED_USERS = 5
MAX_WORDS, MAX_LENGTH = 500, 1000
"""Characters of an error's own text, and of all that is told about it."""
PASSED_THROUGH = frozenset({__file__, contextmanager.__code__.co_filename})
"""Files whose frames only hand an error on."""


class TrainError(RuntimeError):
    """Local training failed; the text names the users and the stage."""


def describe(error: BaseException) -> str:
    """Type and text of an error and the frames it came through, innermost last; one line.

    Frames are those of the error and of what caused it, without the lines' text. Where
    there are too many, the outermost are left out.
    """
    told, shown = words(error), ""
    for frame in reversed(frames(error)):
        longer = f"{frame} > {shown}" if shown else frame
        if len(told) + len(" at ... > ") + len(longer) > MAX_LENGTH:
            return f"{told} at ... > {shown}"
        shown = longer
    return f"{told} at {shown}" if shown else told


def words(error: BaseException) -> str:
    """``Type: text`` on one line, at most MAX_WORDS characters of it.

    A KeyError or IndexError may quote an item of a user's: its text stays in the node's log.
    """
    name, text = type(error).__name__, " ".join(str(error).split())
    if isinstance(error, LookupError):
        text = "(text in the node's log)"
    told = f"{name}: {text}" if text else name
    return told if len(told) <= MAX_WORDS else told[: MAX_WORDS - 3] + "..."


def frames(error: BaseException) -> list[str]:
    """``folder/file.py:line function`` of an error's and its causes' frames, innermost last."""
    found: dict[tuple[str, str], str] = {}
    cause: BaseException | None = error
    while cause is not None:
        for frame in traceback.extract_tb(cause.__traceback__):
            if frame.filename not in PASSED_THROUGH:
                path, key = Path(frame.filename), (frame.filename, frame.name)
                found.pop(key, None)  # the cause's frame of the same function is the nearer one
                found[key] = f"{path.parent.name}/{path.name}:{frame.lineno} {frame.name}"
        cause = cause.__cause__
    return list(found.values())


@contextmanager
def stage(name: str, users: IntArray) -> Iterator[None]:
    """Name the stage and the users of whatever fails inside, with the error's own words."""
    try:
        yield
    except Exception as error:
        raise TrainError(f"{named(users)}: {name}: {words(error)}") from error


def named(users: IntArray) -> str:
    """``user 3`` or ``users 3, 4, 5`` with at most a few of them."""
    shown = ", ".join(str(int(user)) for user in users[:NAMED_USERS])
    more = f" and {len(users) - NAMED_USERS} more" if len(users) > NAMED_USERS else ""
    return f"{'user' if len(users) == 1 else 'users'} {shown}{more}"
