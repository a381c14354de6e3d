"""The server's half of secure aggregation: sums over nodes, of which it never sees a single one.

A sum takes four exchanges: public keys, sealed shares, the masked uploads (which are the replies
to training, evaluation or item counts), and shares that unmask the sum of those who stayed. Until
the last one nothing can be read, so whatever falls short before it is tried again or given up.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeVar

import numpy as np
from flwr.app import Message, RecordDict
from flwr.common.logger import log

from conf.tree import Config, SecAggConfig
from server_app.errors import RoundError
from server_app.exchange import Courier
from server_app.failures import NodeFailure
from server_app.gather import Ask, Gatherer, Keyed
from server_app.nodes import NodeDirectory
from server_app.secagg_journal import Costs, Journal
from server_app.secagg_recovery import Recovery, Uploads
from strategies.codec import WireError
from strategies.hooks import Failure, error_of
from strategies.messages import Header
from strategies.secagg import records
from strategies.secagg.crypto import SecAggError
from strategies.secagg.fixed_point import FIGURES, FixedPoint
from strategies.secagg.payload import SECONDS, Payload, decoded
from strategies.secagg.protocol import KEYS, SHARES, UNMASK, PublicKeys, Scope, threshold_of

WARNING = 30
R = TypeVar("R", bound=Keyed)


@dataclass(frozen=True)
class Summed:
    """The sum over ``survivors``."""

    payload: Payload
    survivors: tuple[str, ...]
    users: int
    """Users that were asked for on the survivors."""

    @property
    def seconds(self) -> tuple[float, ...]:
        """How long the survivors worked, each taken for the mean: that is all there is to see."""
        total = float(self.payload.figures.get(SECONDS, np.zeros(())))
        return (max(total, 0.0) / len(self.survivors),) * len(self.survivors)


@dataclass
class _Attempt:
    """One session: who was asked, who is still there, and what went wrong."""

    scope: Scope
    users_of: Mapping[str, int]
    last: bool
    threshold: int = 0
    failures: list[NodeFailure] = field(default_factory=list)


class _TooFew(Exception):  # noqa: N818  never leaves this module
    """An attempt that ended before anything was unmasked; the text says why."""


class SecureSums:
    """Asks nodes for masked sums, again where the policy says so, and unmasks the total."""

    def __init__(
        self,
        cfg: Config,
        directory: NodeDirectory,
        courier: Courier,
        gatherer: Gatherer,
        header: Header,
        journal: Journal,
    ) -> None:
        assert cfg.privacy.secagg is not None
        self._settings: SecAggConfig = cfg.privacy.secagg
        self._policy, self._directory, self._courier = cfg.federation, directory, courier
        self._gatherer, self._header, self._journal = gatherer, header, journal
        s = self._settings
        self.number = FixedPoint(s.modulus_bits, s.fraction_bits, s.limit)
        self.costs = Costs()
        """What the extra exchanges took since they were taken note of last."""

    def collect(self, what: str, users_of: Mapping[str, int], ask: Ask) -> Summed:
        """The sum ``what`` over the nodes of the shards in ``users_of`` (users by shard).

        ``ask`` makes the messages whose replies are masked.

        Raises:
            RoundError: when too few nodes stay, by the policy or for the protocol. Nothing was
                unmasked then, unless the text says that shares are missing.

        """
        users_of = self._as_before(what, users_of)
        self._check_room(what, users_of)
        attempts = 1 + (self._policy.retries if self._policy.on_missing == "retry" else 0)
        failures: list[NodeFailure] = []
        reason = ""
        for number in range(attempts):
            if number:
                self._gatherer.await_return(frozenset(users_of))
            scope = Scope(self._header.run_id, what, secrets.token_hex(16))
            attempt = _Attempt(scope, users_of, last=number == attempts - 1, failures=failures)
            try:
                summed = self._attempt(attempt, ask)
            except _TooFew as error:
                reason = str(error)
                log(WARNING, "%s, attempt %d of %d: %s", what, number + 1, attempts, reason)
                continue
            missing = frozenset(users_of) - set(summed.survivors)
            self._gatherer.failures.add(failures, missing)
            self.costs.dropped += len(missing)
            self.costs.sums += 1
            return summed
        raise RoundError(self._said(what, reason, failures))

    # ---- one session ---------------------------------------------------------------------
    def _attempt(self, attempt: _Attempt, ask: Ask) -> Summed:
        scope = attempt.scope
        with self._measured():
            found = self._stage(attempt, attempt.users_of, self._keys(attempt), records.advertised)
            roster = {name: reply.keys for name, reply in found.items()}
            # Of those who were asked: a threshold of those who came would fall with them.
            attempt.threshold = threshold_of(self._settings.threshold, len(attempt.users_of))
            self._enough(attempt, roster, "gave keys")
            sealed = self._stage(
                attempt, roster, self._shares(attempt, roster), records.texts_of,
                lambda reply: _misses(reply, set(roster)),
            )  # fmt: skip
            self._enough(attempt, sealed, "gave shares")
        uploads = self._uploads(attempt, ask, sealed)
        self._enough(attempt, uploads, "sent an upload")
        with self._measured():
            return self._unmasked(attempt, Uploads(scope, self.number, roster, sealed, uploads))

    def _uploads(
        self, attempt: _Attempt, ask: Ask, sealed: Mapping[str, records.Texts]
    ) -> dict[str, records.Upload]:
        scope = attempt.scope

        def with_shares(outstanding: frozenset[str]) -> Iterable[Message]:
            for message in ask(outstanding):
                target = self._directory.shard_at(message.metadata.dst_node_id)
                shares = {s: t.values[target] for s, t in sealed.items() if s != target}
                record = records.sealed_fields(scope, shares)
                message.content = RecordDict({**message.content, records.SECAGG: record})
                yield message

        bits = self.number.bits
        found = self._stage(
            attempt, sealed, with_shares, lambda content: records.upload_of(content, bits),
            lambda upload: None if upload.session == scope.session else "is of another session",
        )  # fmt: skip
        self._journal.keep(scope.what, found.values())
        return self._alike(attempt, found)

    def _alike(
        self, attempt: _Attempt, uploads: dict[str, records.Upload]
    ) -> dict[str, records.Upload]:
        """The uploads of the most common layout; others cannot be added."""
        common = Counter(upload.layout for upload in uploads.values()).most_common(1)
        alike = {n: u for n, u in uploads.items() if u.layout == common[0][0]}
        for name in sorted(uploads.keys() - alike.keys()):
            reason = "rejected: its masked upload has another layout than the others'"
            node = self._directory.node(name)
            attempt.failures.append(NodeFailure(name, node, reason, by_client=True))
        return alike

    def _unmasked(self, attempt: _Attempt, uploads: Uploads) -> Summed:
        """Ask the survivors for shares, and take the masks off."""
        what, survivors = attempt.scope.what, tuple(sorted(uploads.uploads))
        # Before anything is asked: once unmasked, this sum may be of these nodes alone.
        self._journal.note(what, survivors)
        given: dict[str, records.Texts] = {}
        for _ in range(1 + self._policy.retries):
            left = [name for name in survivors if name not in given]
            given |= self._stage(
                attempt, left, self._unmask(attempt.scope, survivors), records.texts_of,
                lambda reply: _misses_any(reply, survivors),
            )  # fmt: skip
            if len(given) >= attempt.threshold:
                break
        try:
            vectors = Recovery(uploads, attempt.threshold).total(given)
            layout = uploads.uploads[survivors[0]].layout
            payload = decoded(vectors, layout, self.number)
        except (SecAggError, WireError) as error:
            raise RoundError(self._said(what, str(error), attempt.failures)) from error
        users = sum(attempt.users_of[name] for name in survivors)
        return Summed(payload, survivors, users)

    # ---- stages --------------------------------------------------------------------------
    def _stage(
        self,
        attempt: _Attempt,
        shards: Iterable[str],
        ask: Ask,
        decode: Callable[[RecordDict], R],
        check: Callable[[R], str | None] = lambda reply: None,
    ) -> dict[str, R]:
        found, failed = self._gatherer.once(
            frozenset(shards), ask, lambda replies: _collected(replies, decode), check
        )
        for failure in failed:
            log(WARNING, "%s: %s", attempt.scope.what, failure)
        attempt.failures += failed
        return {name: found[name] for name in sorted(found)}

    def _keys(self, attempt: _Attempt) -> Ask:
        return self._asking(KEYS, records.request_of(self._header, attempt.scope))

    def _shares(self, attempt: _Attempt, roster: Mapping[str, PublicKeys]) -> Ask:
        fields = records.roster_fields(roster, attempt.threshold)
        return self._asking(SHARES, records.request_of(self._header, attempt.scope, **fields))

    def _unmask(self, scope: Scope, survivors: tuple[str, ...]) -> Ask:
        content = records.request_of(self._header, scope, survivors=list(survivors))
        return self._asking(UNMASK, content)

    def _asking(self, kind: str, content: RecordDict) -> Ask:
        def ask(outstanding: frozenset[str]) -> list[Message]:
            nodes = [self._directory.node(key) for key in sorted(outstanding)]
            return [Message(RecordDict(dict(content)), n, kind, group_id="secagg") for n in nodes]

        return ask

    def _measured(self) -> AbstractContextManager[None]:
        return self.costs.measuring(self._courier)

    # ---- policy --------------------------------------------------------------------------
    def _enough(self, attempt: _Attempt, alive: Iterable[str], did: str) -> None:
        """Raise _TooFew unless those who are there may go on; nothing is unmasked then."""
        here, users_of = set(alive), attempt.users_of
        least = max(attempt.threshold, self._settings.min_nodes)
        if len(here) < least:
            raise _TooFew(f"{len(here)} of {len(users_of)} nodes {did}, {least} are needed")
        if self._journal.survivors(attempt.scope.what) is not None and len(here) < len(users_of):
            raise _TooFew(f"{len(here)} of the {len(users_of)} nodes of this sum {did}")
        arrived, total = sum(users_of[key] for key in here), sum(users_of.values())
        # Exact in decimal: 7 of 100 users are a share of 0.07, which binary floats deny.
        short = arrived < Fraction(str(self._policy.min_share)) * total
        if short and not (attempt.last and self._policy.on_missing == "continue"):
            raise _TooFew(f"nodes of {arrived} of {total} users {did}")

    def _as_before(self, what: str, users_of: Mapping[str, int]) -> Mapping[str, int]:
        """A sum that was unmasked before is one over the same nodes, or none."""
        known = self._journal.survivors(what)
        if known is None:
            return users_of
        if absent := sorted(set(known) - users_of.keys()):
            raise RoundError(
                f"{what}: was summed over nodes of which {', '.join(absent)} are not there; a sum "
                "over others would tell their part, so it is not made: start these nodes"
            )
        return {key: users_of[key] for key in known}

    def _check_room(self, what: str, users_of: Mapping[str, int]) -> None:
        users, nodes = sum(users_of.values()), len(users_of)
        for number, key in ((self.number, "privacy.secagg.limit or fraction_bits"), (FIGURES, "")):
            if users > number.most_users(nodes):
                advice = f": lower {key}" if key else ""
                raise RoundError(
                    f"{what}: a sum over {users} users may not fit {number.bits} bits (at most "
                    f"{number.most_users(nodes)} users){advice}"
                )

    def _said(self, what: str, reason: str, failures: list[NodeFailure]) -> str:
        policy = self._policy
        first = next((f for f in failures if f.by_client), failures[-1] if failures else None)
        return (
            f"{what}: secure aggregation: {reason} (min_share={policy.min_share:g}, "
            f"on_missing={policy.on_missing})" + ("" if first is None else f"; {first}")
        )


def _collected(
    replies: Iterable[Message], decode: Callable[[RecordDict], R]
) -> tuple[list[R], list[Failure]]:
    usable: list[R] = []
    failures: list[Failure] = []
    for reply in replies:
        if reply.has_error():
            failures.append(error_of(reply))
            continue
        try:
            usable.append(decode(reply.content))
        except WireError as error:
            meta = reply.metadata
            found = Failure(meta.reply_to_message_id, meta.src_node_id, f"rejected: {error}")
            failures.append(found)
    return usable, failures


def _misses(reply: records.Texts, roster: set[str]) -> str | None:
    if reply.values.keys() != roster - {reply.shard_key}:
        return "its sealed shares are not for the nodes of the session"
    return None


def _misses_any(reply: records.Texts, survivors: tuple[str, ...]) -> str | None:
    return None if reply.values.keys() == set(survivors) else "shares of survivors are missing"
