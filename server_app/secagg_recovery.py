"""Taking the masks off a sum: secrets from shares, checked, then subtracted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from flwr.common.secure_aggregation.crypto.shamir import combine_shares

from strategies.secagg.crypto import SecAggError, commitment, public_key
from strategies.secagg.fixed_point import FixedPoint
from strategies.secagg.payload import Vectors
from strategies.secagg.protocol import PublicKeys, Scope, self_mask, with_pair_masks
from strategies.secagg.records import Texts, Upload


@dataclass(frozen=True)
class Uploads:
    """What the server has of a session: keys, sealed shares, and the survivors' uploads."""

    scope: Scope
    number: FixedPoint
    roster: Mapping[str, PublicKeys]
    sealed: Mapping[str, Texts]
    """By each node whose masks are in the uploads."""
    uploads: Mapping[str, Upload]


class Recovery:
    """The sum of a session's uploads without their masks."""

    def __init__(self, session: Uploads, threshold: int) -> None:
        self._session, self._threshold = session, threshold

    def total(self, given: Mapping[str, Texts]) -> Vectors:
        """The sum of what the survivors sent, from the shares that some of them gave.

        Raises:
            SecAggError: for fewer shares than the threshold, or a secret that they do not give.

        """
        if len(given) < self._threshold:
            raise SecAggError(
                f"shares of {len(given)} nodes are here, {self._threshold} are needed, and the "
                "sum cannot be read"
            )
        session = self._session
        vectors = reduce(Vectors.plus, (u.vectors for u in session.uploads.values()))
        for name in session.uploads:
            vectors = vectors.minus(self._own(name, given, _lengths(vectors)))
        for name in session.sealed.keys() - session.uploads.keys():
            vectors = self._without(name, given, vectors)
        return vectors

    def _own(self, name: str, given: Mapping[str, Texts], lengths: tuple[int, int]) -> Vectors:
        seed = self._combined(name, [texts.values.get(name) for texts in given.values()])
        if commitment(seed) != self._session.sealed[name].proof:
            raise SecAggError(f"the shares of {name!r}'s seed do not fit together")
        return self_mask(self._session.scope, seed, self._session.number, lengths, name)

    def _without(self, name: str, given: Mapping[str, Texts], vectors: Vectors) -> Vectors:
        """What the survivors' masks with a node that dropped out amount to, added in its place."""
        session = self._session
        private = self._combined(name, [texts.more.get(name) for texts in given.values()])
        if public_key(private) != session.roster[name].mask:
            raise SecAggError(f"the shares of {name!r}'s key do not fit together")
        peers = {n: session.roster[n] for n in session.uploads}
        return with_pair_masks(vectors, session.scope, private, name, peers, session.number)

    def _combined(self, name: str, shares: list[bytes | None]) -> bytes:
        there = [share for share in shares if share is not None][: self._threshold]
        if len(there) < self._threshold:
            raise SecAggError(f"{len(there)} shares of {name!r}, {self._threshold} are needed")
        try:
            secret = bytes(combine_shares(there))
        except (ValueError, IndexError) as error:
            raise SecAggError(f"the shares of {name!r} do not fit together ({error})") from error
        if len(secret) != 32:
            raise SecAggError(f"the shares of {name!r} do not fit together")
        return secret


def _lengths(vectors: Vectors) -> tuple[int, int]:
    return len(vectors.tensors), len(vectors.figures)
