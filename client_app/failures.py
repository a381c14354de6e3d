"""How a failure on a node is told to the server: what, where in the code, no user's data."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from models.types import IntArray

NAMED_USERS = 5


class TrainError(RuntimeError):
    """Local training failed; the text names the users and the stage."""


def describe(error: BaseException) -> str:
    """The last line of the traceback and the place it points to."""
    return f"{type(error).__name__}: {error} at {place(error)}"


def place(error: BaseException) -> str:
    """``folder/file.py:line`` where the error was first raised."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    frames = traceback.extract_tb(cause.__traceback__)
    if not frames:
        return "an unknown place"
    path = Path(frames[-1].filename)
    return f"{path.parent.name}/{path.name}:{frames[-1].lineno}"


@contextmanager
def stage(name: str, users: IntArray) -> Iterator[None]:
    """Name the stage and the users of whatever fails inside.

    Only the text of a ValueError is passed on, as that is how deliberate checks speak; other
    errors may quote item indices.
    """
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}" if isinstance(error, ValueError) else ""
        what = text or f"{type(error).__name__} at {place(error)} (details in the node's log)"
        raise TrainError(f"{named(users)}: {name}: {what}") from error


def named(users: IntArray) -> str:
    """``user 3`` or ``users 3, 4, 5`` with at most a few of them."""
    shown = ", ".join(str(int(user)) for user in users[:NAMED_USERS])
    more = f" and {len(users) - NAMED_USERS} more" if len(users) > NAMED_USERS else ""
    return f"{'user' if len(users) == 1 else 'users'} {shown}{more}"
