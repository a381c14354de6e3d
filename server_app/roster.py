"""Who hosts which users: the shards of a run, checked against each other as they come.

A node is known by its shard key. Flower's node ids are random and change when a node
restarts, so they are used for addressing alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from models.types import IntArray
from server_app.errors import NodeError
from strategies.messages import HelloReply

NOBODY = -1
SHOWN = 12
"""Digits of a hash in an error."""


class Roster:
    """Maps users to shards, and shards to the nodes that host them now."""

    def __init__(self) -> None:
        self._hello: dict[str, HelloReply] = {}
        self._node_of: dict[str, int] = {}
        self._keys: tuple[str, ...] = ()
        self._owner_N: IntArray = np.empty(0, np.int64)
        self.users: IntArray = np.empty(0, np.int64)
        """Global indices of the users that some shard hosts, ascending."""

    @property
    def shards(self) -> Mapping[str, HelloReply]:
        """Every shard's introduction, by shard key in ascending order."""
        return {key: self._hello[key] for key in self._keys}

    @property
    def num_users(self) -> int:
        """Users that some shard hosts."""
        return len(self.users)

    @property
    def num_items(self) -> int:
        """Items of the catalogue, I."""
        return self._hello[self._keys[0]].num_items

    def node(self, shard_key: str) -> int:
        """The id of the node that hosts a shard now, or did last."""
        return self._node_of[shard_key]

    def shard_at(self, node_id: int) -> str:
        """The shard key of a node id, for messages; unknown ids read as such."""
        return next((k for k, n in self._node_of.items() if n == node_id), "unknown")

    def split(self, users: IntArray) -> dict[str, IntArray]:
        """Split user indices by shard; shards in ascending order, users in the given order."""
        owners = self._owner_N[users]
        order = np.argsort(owners, kind="stable")
        present, starts = np.unique(owners[order], return_index=True)
        parts = np.split(users[order], starts[1:]) if len(users) else []
        return {self._keys[owner]: part for owner, part in zip(present, parts, strict=True)}

    def move(self, shard_key: str, node_id: int) -> None:
        """Note that a known shard is on another node now."""
        self._node_of[shard_key] = node_id

    def add(self, node_id: int, hello: HelloReply) -> None:
        """Take a shard in.

        Raises:
            NodeError: for a shard key that is taken, another catalogue than that of the shards
                here, or a user whom another shard hosts or the federation does not have.

        """
        key = hello.shard_key
        if key in self._hello:
            raise NodeError(f"nodes {self._node_of[key]} and {node_id} both report shard {key!r}")
        if self._keys:
            check_catalogue(self._keys[0], self._hello[self._keys[0]], hello)
        self._check_users(hello)
        self._hello[key], self._node_of[key] = hello, node_id
        self._keys = tuple(sorted(self._hello))
        self._number(hello.population)

    def missing(self) -> IntArray:
        """Users of the federation whom no shard hosts."""
        return np.flatnonzero(self._owner_N == NOBODY)

    def _check_users(self, hello: HelloReply) -> None:
        users, key = hello.users, hello.shard_key
        outside = users[(users < 0) | (users >= hello.population)]
        if len(outside):
            raise NodeError(
                f"shard {key!r} reports user {outside[0]} of a federation of {hello.population}"
            )
        if len(np.unique(users)) < len(users):
            raise NodeError(f"shard {key!r} reports a user twice")
        taken = users[self._owner_N[users] != NOBODY] if len(self._owner_N) else users[:0]
        if len(taken):
            other = self._keys[self._owner_N[taken[0]]]
            raise NodeError(f"user {taken[0]} is on shards {other!r} and {key!r}")

    def _number(self, population: int) -> None:
        self._owner_N = np.full(population, NOBODY, dtype=np.int64)
        for place, key in enumerate(self._keys):
            self._owner_N[self._hello[key].users] = place
        self.users = np.flatnonzero(self._owner_N != NOBODY)


def check_catalogue(first_key: str, first: HelloReply, reply: HelloReply) -> None:
    """Raise NodeError unless two shards agree on the catalogue and the number of users."""
    if _federation(first) != _federation(reply):
        raise NodeError(
            f"shards {first_key!r} and {reply.shard_key!r} have different catalogues "
            f"({first.num_items} and {reply.num_items} items, {first.population} and "
            f"{reply.population} users, hashes {first.catalogue[:SHOWN]} and "
            f"{reply.catalogue[:SHOWN]}): prepare both from the same data"
        )


def majority_first(replies: Mapping[int, HelloReply]) -> list[tuple[int, HelloReply]]:
    """Introductions by node id: those with the most common catalogue first, by shard key."""
    common = Counter(map(_federation, replies.values()))
    return sorted(
        replies.items(),
        key=lambda item: (-common[_federation(item[1])], item[1].shard_key, item[0]),
    )


def same_shard(known: HelloReply, reply: HelloReply) -> bool:
    """Whether a node that introduces itself hosts the shard known by its key.

    Users may have been forgotten meanwhile; none may have come.
    """
    return (
        _federation(known) == _federation(reply)
        and known.data == reply.data
        and bool(np.isin(reply.users, known.users).all())
    )


def lost_state(shard_keys: Iterable[str]) -> str:
    """What to say of shards whose stores know nothing of a run that they took part in."""
    return (
        f"shards {', '.join(sorted(shard_keys))} lost the private state of this run: restore "
        "their stores, or start a new run"
    )


def older_state(shard_key: str, last_round: int, trained: int) -> str:
    """What to say of a store that lacks rounds whose answers the server has used."""
    return (
        f"shard {shard_key} has an older copy of its private state (up to round {last_round}, and "
        f"it has answered round {trained}): put the newer store in place, or start a new run"
    )


def _federation(hello: HelloReply) -> tuple[str, int, int]:
    return hello.catalogue, hello.num_items, hello.population
