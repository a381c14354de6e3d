"""Whether the nodes' shards fit together: one catalogue, every user on exactly one of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from models.types import IntArray
from server_app.errors import NodeError
from strategies.messages import HelloReply


def check_catalogue(shards: Mapping[str, HelloReply]) -> None:
    """Raise NodeError unless all shards agree on the catalogue and its size."""
    first_key, *others = shards
    first = shards[first_key]
    for key in others:
        reply = shards[key]
        if (reply.catalogue, reply.num_items) != (first.catalogue, first.num_items):
            raise NodeError(
                f"shards {first_key!r} and {key!r} have different catalogues "
                f"({first.num_items} and {reply.num_items} items, {first.catalogue} and "
                f"{reply.catalogue}): prepare both from the same one"
            )


def owners(shards: Mapping[str, HelloReply]) -> IntArray:
    """Position of the owning shard of each user (N,).

    Raises:
        NodeError: unless the shards' users are exactly 0..N-1, each once.

    """
    users = np.concatenate([reply.users for reply in shards.values()])
    shard = np.repeat(np.arange(len(shards)), [len(reply.users) for reply in shards.values()])
    order = np.argsort(users, kind="stable")
    ascending, keys = users[order], tuple(shards)
    twice = np.flatnonzero(np.diff(ascending) == 0)
    if len(twice):
        first, second = shard[order[twice[0]]], shard[order[twice[0] + 1]]
        raise NodeError(
            f"user {ascending[twice[0]]} is on shards {keys[first]!r} and {keys[second]!r}"
        )
    wrong = np.flatnonzero(ascending != np.arange(len(ascending)))
    if not len(ascending) or len(wrong):
        gap = int(wrong[0]) if len(wrong) else 0
        raise NodeError(f"no shard hosts user {gap}: the shards do not cover all users")
    return shard[order].astype(np.int64)


def same_shard(known: HelloReply, reply: HelloReply) -> bool:
    """Whether a node that introduces itself hosts exactly the shard known by its key."""
    return (
        known.catalogue == reply.catalogue
        and known.data == reply.data
        and np.array_equal(known.users, reply.users)
    )
