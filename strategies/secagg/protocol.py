"""Names, thresholds and masks of one session: the rules that server and nodes share."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from strategies.secagg.crypto import SecAggError, agreed, mask
from strategies.secagg.fixed_point import FixedPoint
from strategies.secagg.payload import Vectors

LEAST_NODES = 3
"""Of a sum: of two nodes each would know the other's."""
KEYS, SHARES, UNMASK = "query.secagg_keys", "query.secagg_shares", "query.secagg_unmask"
"""Flower message types of the stages before and after the upload."""
ITEM_COUNTS = "item_counts"


def train_sum(round_: int) -> str:
    """Name of the sum of a round's updates."""
    return f"train/{round_}"


def evaluation_sum(scorer: str, state_round: int) -> str:
    """Name of the sum of an evaluation."""
    return f"evaluate/{scorer}/{state_round}"


def majority(nodes: int) -> int:
    """Fewest nodes that no two disjoint groups of ``nodes`` have; the least threshold."""
    return nodes // 2 + 1


def threshold_of(share: float, nodes: int) -> int:
    """Shares that recover a secret of one of ``nodes`` nodes."""
    return max(math.ceil(share * nodes - 1e-9), majority(nodes))


@dataclass(frozen=True)
class Scope:
    """What keys and masks are bound to: run, sum, and the attempt at it."""

    run_id: str
    what: str
    session: str

    def use(self, *label: str) -> str:
        """Context of one use."""
        parts = ("fedrecgel-secagg-1", self.run_id, self.what, self.session, *label)
        # Lengths keep different lists apart whatever their texts contain.
        return "|".join(f"{len(part)}:{part}" for part in parts)


@dataclass(frozen=True)
class PublicKeys:
    """A node's keys of a session: one for sealed shares, one for masks."""

    cipher: bytes
    mask: bytes


def share_key(scope: Scope, private: bytes, public: bytes, source: str, target: str) -> bytes:
    """Key for the shares that ``source`` sends ``target``."""
    return agreed(private, public, scope.use("shares", source, target))


def self_mask(
    scope: Scope, seed: bytes, number: FixedPoint, lengths: tuple[int, int], owner: str
) -> Vectors:
    """The mask that a node adds for itself."""
    return mask(seed, number.bits, lengths, scope.use("self", owner))


def pair_mask(
    scope: Scope,
    private: bytes,
    public: bytes,
    number: FixedPoint,
    lengths: tuple[int, int],
    pair: tuple[str, str],
) -> Vectors:
    """The mask that two nodes share; the first in order adds it, the other subtracts it."""
    first, second = sorted(pair)
    label = scope.use("pair", first, second)
    return mask(agreed(private, public, label), number.bits, lengths, label)


def with_pair_masks(
    vectors: Vectors,
    scope: Scope,
    private: bytes,
    owner: str,
    peers: Mapping[str, PublicKeys],
    number: FixedPoint,
) -> Vectors:
    """``vectors`` with the masks that ``owner`` shares with each peer, by their signs."""
    lengths = len(vectors.tensors), len(vectors.figures)
    for peer, keys in sorted(peers.items()):
        shared = pair_mask(scope, private, keys.mask, number, lengths, (owner, peer))
        vectors = vectors.plus(shared) if owner < peer else vectors.minus(shared)
    return vectors


def check_roster(nodes: Collection[str], threshold: int, least: int = LEAST_NODES) -> None:
    """What a node asks of the others before it gives anything away.

    Raises:
        SecAggError: for too few nodes, or a threshold that two groups of nodes could reach.

    """
    if len(nodes) < max(least, LEAST_NODES):
        raise SecAggError(
            f"secure aggregation: {len(nodes)} nodes are too few for a sum, "
            f"{max(least, LEAST_NODES)} are needed"
        )
    if not majority(len(nodes)) <= threshold <= len(nodes):
        raise SecAggError(
            f"secure aggregation: a threshold of {threshold} of {len(nodes)} nodes is not allowed, "
            f"at least {majority(len(nodes))}"
        )
