"""Ranks of single users in an evaluation reply, for simulations that ask for them."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from models.types import UserRanks
from strategies.codec import WireError
from strategies.fields import integer_vector

RANKS, USERS = "user-ranks", "users"


def encode_ranks(ranks: UserRanks) -> ArrayRecord:
    """A record with the users and a vector for each kind of ranking."""
    vectors = {USERS: ranks.users_U, **ranks.ranks}
    return ArrayRecord({name: Array(vector_U) for name, vector_U in vectors.items()})


def decode_ranks(content: RecordDict) -> UserRanks | None:
    """Read the ranks of a reply; None where it has none.

    Raises:
        WireError: for users that do not ascend, or vectors of other lengths or types.

    """
    record = content.array_records.get(RANKS)
    if record is None:
        return None
    if USERS not in record:
        raise WireError("ranks name no users")
    vectors = {name: integer_vector(record, name) for name in record}
    users_U = vectors.pop(USERS)
    if (np.diff(users_U) <= 0).any():
        raise WireError("users of ranks must ascend")
    for name, ranks_U in vectors.items():
        if len(ranks_U) != len(users_U):
            raise WireError(f"{len(ranks_U)} ranks {name} of {len(users_U)} users")
    return UserRanks(users_U, vectors)
