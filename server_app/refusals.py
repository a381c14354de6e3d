"""What a node's failure to introduce itself is called at the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flwr.app import Message

from server_app.errors import NodeError

PLAIN = re.compile(r"(?:DataError|ConfigError|NodeError|StoreError): (.+)")
"""A node's errors whose text says by itself what to change."""
FRAMES = re.compile(r" at (?:\.\.\. > )?[^\s>]+\.py:\d+ \S+(?: > [^\s>]+\.py:\d+ \S+)*$")
"""Where in the code an error was raised, as ``client_app.failures.describe`` ends with."""


def refusal(node_id: int, reason: str | None) -> str:
    """One line about one node; a plain error begins with its own words."""
    plain = plain_text(reason)
    if plain is None:
        return f"node {node_id} failed to introduce itself: {reason}"
    return f"{plain} (node {node_id})"


def refuse_alike(replies: Sequence[Message]) -> None:
    """Raise NodeError without a node's id when all nodes fail for the same plain reason.

    So it is in a simulation, whose nodes read the same file.
    """
    texts = {plain_text(r.error.reason) if r.has_error() else None for r in replies}
    if len(texts) == 1 and (text := texts.pop()) is not None:
        raise NodeError(text)


def plain_text(reason: str | None) -> str | None:
    """The words of a plain error, without its type and frames; None for any other error."""
    found = PLAIN.fullmatch(FRAMES.sub("", reason or ""))
    return found[1] if found else None
