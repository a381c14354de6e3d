"""Records of tensors that the server sends for single users."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import ArrayRecord, RecordDict

from models.types import Tensors
from strategies.codec import from_arrays, to_arrays
from strategies.fields import user_index

PERSONAL = "personal/"


def encode_personal(personal: Mapping[int, Tensors]) -> dict[str, ArrayRecord]:
    """A record for each user with tensors of its own."""
    return {f"{PERSONAL}{user}": to_arrays(tensors) for user, tensors in personal.items()}


def personal_of(content: RecordDict) -> dict[int, Tensors]:
    """Read them by user."""
    return {
        user_index(n, PERSONAL): from_arrays(r)
        for n, r in content.array_records.items()
        if n.startswith(PERSONAL)
    }
