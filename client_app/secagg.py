"""The node's half of secure aggregation: keys, shares, the masked upload, unmasking."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from flwr.app import RecordDict
from flwr.common.secure_aggregation.crypto.shamir import create_shares

from client_app.node_config import NodeError
from client_app.runtime import Node
from client_app.secagg_store import Session, SessionStore
from conf.tree import SecAggConfig
from strategies.secagg import records
from strategies.secagg.crypto import (
    SecAggError,
    commitment,
    new_seed,
    public_key,
    seal,
    unseal,
)
from strategies.secagg.fixed_point import FixedPoint
from strategies.secagg.payload import Payload, Vectors, encoded, layout_of
from strategies.secagg.protocol import (
    PublicKeys,
    Scope,
    check_roster,
    self_mask,
    share_key,
    with_pair_masks,
)
from strategies.secagg.records import Texts, Upload


def settings_of(node: Node) -> SecAggConfig:
    """The run's settings.

    Raises:
        NodeError: in a run without secure aggregation.

    """
    if node.cfg.privacy.secagg is None:
        raise NodeError("this run has no secure aggregation (privacy=secagg)")
    return node.cfg.privacy.secagg


def number_of(settings: SecAggConfig) -> FixedPoint:
    """How an update's numbers are encoded."""
    return FixedPoint(settings.modulus_bits, settings.fraction_bits, settings.limit)


def _sessions(node: Node) -> SessionStore:
    settings_of(node)
    return SessionStore(node.state.store, node.state.run_id)


def answer_keys(node: Node, content: RecordDict) -> RecordDict:
    """Fresh public keys for a session; the same ones where it is asked for again."""
    scope = records.scope_of(content, node.state.run_id)
    fresh = Session(new_seed().hex(), new_seed().hex(), new_seed().hex())
    session = _sessions(node).start(scope, fresh)
    return records.keys_reply(node.shard_key, _public(session))


def _public(session: Session) -> PublicKeys:
    keys = (public_key(bytes.fromhex(k)) for k in (session.cipher_key, session.mask_key))
    return PublicKeys(*keys)


def answer_shares(node: Node, content: RecordDict) -> RecordDict:
    """Shares of the node's own seed and mask key, sealed for each other node.

    Raises:
        SecAggError: for too few nodes, too low a threshold, or a roster that has other keys for
            this node.

    """
    scope = records.scope_of(content, node.state.run_id)
    roster, threshold = records.roster_of(content)
    store, me = _sessions(node), node.shard_key
    check_roster(roster, threshold, settings_of(node).min_nodes)
    session = store.read(scope)
    if roster.get(me) != _public(session):
        raise SecAggError(
            "secure aggregation: the roster has other keys for this node than its own"
        )
    peers = {n: (k.cipher.hex(), k.mask.hex()) for n, k in roster.items()}
    session = store.update(scope, peers=peers, threshold=threshold)
    if not session.sent:
        sent, own = _sealed_shares(session, scope, roster, me)
        session = store.update(scope, sent=sent, own=own)
    texts = {name: bytes.fromhex(text) for name, text in session.sent.items()}
    proof = commitment(bytes.fromhex(session.seed))
    return records.texts_reply(Texts(me, texts, {}, proof))


def _sealed_shares(
    session: Session, scope: Scope, roster: Mapping[str, PublicKeys], me: str
) -> tuple[dict[str, str], tuple[str, str]]:
    names, private = sorted(roster), bytes.fromhex(session.cipher_key)
    seeds, keys = (
        create_shares(bytes.fromhex(secret), session.threshold, len(names))
        for secret in (session.seed, session.mask_key)
    )
    sent, own = dict[str, str](), ("", "")
    for name, seed, key in zip(names, seeds, keys, strict=True):
        if name == me:
            own = seed.hex(), key.hex()
            continue
        secret = share_key(scope, private, roster[name].cipher, me, name)
        sent[name] = seal(secret, seed + key, scope.use("shares", me, name)).hex()
    return sent, own


def masked(
    node: Node, content: RecordDict, what: str, payload: Payload, users: int, seconds: float
) -> RecordDict:
    """The reply with a node's sums, masked for the session that the request names.

    ``seconds``: how long the node worked; masked as well, for it tells how much its users have.

    Raises:
        SecAggError: for a session of something else, nodes that are too few, shares that were
            changed on their way, or a second upload that would differ under the same masks.
        RangeError: for an entry that the fixed-point numbers cannot hold.

    """
    scope = records.scope_of(content, node.state.run_id)
    settings, store = settings_of(node), _sessions(node)
    if scope.what != what:
        raise SecAggError(f"secure aggregation: a session of {scope.what} for {what}")
    number, session = number_of(settings), store.read(scope)
    received = records.sealed_of(content)
    check_roster([*received, node.shard_key], session.threshold, settings.min_nodes)
    for source in received:
        _opened(session, scope, source, received[source], node.shard_key)
    digest = hashlib.sha256(
        layout_of(payload).encode() + encoded(payload, number, users).to_bytes()
    ).hexdigest()
    texts = {source: text.hex() for source, text in received.items()}
    session = store.update(scope, received=texts, uploaded=digest)
    # Asked again it works for another time, and two uploads under one mask must be the same.
    session = store.first_time(scope, seconds)
    payload = payload.with_seconds(session.seconds)
    vectors, layout = encoded(payload, number, users), layout_of(payload)
    hidden = _hidden(vectors, session, scope, node.shard_key, number)
    return records.upload_reply(Upload(node.shard_key, scope.session, hidden, layout))


def _hidden(
    vectors: Vectors, session: Session, scope: Scope, me: str, number: FixedPoint
) -> Vectors:
    lengths = len(vectors.tensors), len(vectors.figures)
    own = self_mask(scope, bytes.fromhex(session.seed), number, lengths, me)
    peers = {n: _keys(session, n) for n in session.received}
    private = bytes.fromhex(session.mask_key)
    return with_pair_masks(vectors.plus(own), scope, private, me, peers, number)


def _keys(session: Session, name: str) -> PublicKeys:
    cipher, mask = session.peers[name]
    return PublicKeys(bytes.fromhex(cipher), bytes.fromhex(mask))


def _opened(
    session: Session, scope: Scope, source: str, sealed: bytes, me: str
) -> tuple[bytes, bytes]:
    """A peer's shares of its seed and of its mask key."""
    if source == me or source not in session.peers:
        raise SecAggError(f"secure aggregation: {source!r} is no other node of this session")
    private = bytes.fromhex(session.cipher_key)
    secret = share_key(scope, private, _keys(session, source).cipher, source, me)
    try:
        plain = unseal(secret, sealed, scope.use("shares", source, me))
    except SecAggError as error:
        raise SecAggError(f"{error} (from {source!r})") from error
    half = len(plain) // 2
    return plain[:half], plain[half:]


def answer_unmask(node: Node, content: RecordDict) -> RecordDict:
    """Shares of survivors' seeds and of the others' mask keys: never both of one node.

    Raises:
        SecAggError: before this node's upload, for too few survivors, or when this sum was
            unmasked for others before.

    """
    scope = records.scope_of(content, node.state.run_id)
    store, me = _sessions(node), node.shard_key
    survivors = records.survivors_of(content)
    session = store.read(scope)
    everybody = {*session.received, me}
    if not session.uploaded or me not in survivors or not everybody >= set(survivors):
        raise SecAggError("secure aggregation: the survivors are not those that masked together")
    if len(survivors) < max(session.threshold, settings_of(node).min_nodes):
        raise SecAggError(
            f"secure aggregation: {len(survivors)} survivors are below the threshold of "
            f"{session.threshold}"
        )
    session = store.unmask(scope, survivors)
    shares = {
        source: _opened(session, scope, source, bytes.fromhex(sealed), me)
        for source, sealed in session.received.items()
    } | {me: (bytes.fromhex(session.own[0]), bytes.fromhex(session.own[1]))}
    seeds = {name: shares[name][0] for name in survivors}
    keys = {name: shares[name][1] for name in everybody - set(survivors)}
    return records.texts_reply(Texts(me, seeds, keys))
