"""Records of the protocol's messages; decoding checks everything, as ``strategies.wire`` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from strategies.codec import WireError
from strategies.fields import get, section
from strategies.messages import Header
from strategies.secagg.fixed_point import UNSIGNED, Words
from strategies.secagg.payload import Vectors, sizes
from strategies.secagg.protocol import PublicKeys, Scope
from strategies.wire import CONFIG, encode_header

SECAGG, MASKED, TENSORS, FIGURES = "secagg", "masked", "tensors", "figures"


@dataclass(frozen=True)
class Upload:
    """A node's masked upload: all that the server gets of its sums."""

    shard_key: str
    session: str
    vectors: Vectors
    layout: str


@dataclass(frozen=True)
class Texts:
    """Bytes by shard: sealed shares, or shares that are given away."""

    shard_key: str
    values: Mapping[str, bytes]
    more: Mapping[str, bytes]
    proof: bytes = b""
    """Commitment to the node's own seed, with sealed shares."""


def _request(header: Header, scope: Scope, fields: Mapping[str, object]) -> RecordDict:
    own = {"what": scope.what, "session": scope.session, **fields}
    config = ConfigRecord(dict(encode_header(header)))
    return RecordDict({CONFIG: config, SECAGG: ConfigRecord(own)})  # type: ignore[arg-type]


def request_of(header: Header, scope: Scope, **fields: object) -> RecordDict:
    """A stage's request."""
    return _request(header, scope, fields)


def scope_of(content: RecordDict, run_id: str) -> Scope:
    """The session of a request."""
    config = section(content.config_records, SECAGG)
    return Scope(run_id, get(config, "what", str), get(config, "session", str))


def roster_fields(keys: Mapping[str, PublicKeys], threshold: int) -> dict[str, object]:
    """Fields of the public keys of all nodes of a session."""
    names = sorted(keys)
    return {
        "nodes": names,
        "cipher-keys": [keys[n].cipher for n in names],
        "mask-keys": [keys[n].mask for n in names],
        "threshold": threshold,
    }


def roster_of(content: RecordDict) -> tuple[dict[str, PublicKeys], int]:
    """Public keys by shard, and the threshold."""
    config = section(content.config_records, SECAGG)
    names, cipher, mask = (
        listed(config, "nodes", str),
        listed(config, "cipher-keys", bytes),
        listed(config, "mask-keys", bytes),
    )
    if not len(names) == len(set(names)) == len(cipher) == len(mask):
        raise WireError("the roster of a session needs two keys for each of distinct nodes")
    keys = {n: PublicKeys(c, m) for n, c, m in zip(names, cipher, mask, strict=True)}  # type: ignore[arg-type]
    return keys, get(config, "threshold", int)  # type: ignore[return-value]


def keys_reply(shard_key: str, keys: PublicKeys) -> RecordDict:
    """A node's public keys."""
    config = ConfigRecord({"shard-key": shard_key})
    config["cipher-key"], config["mask-key"] = keys.cipher, keys.mask
    return RecordDict({SECAGG: config})


@dataclass(frozen=True)
class Advertised:
    """The keys of a shard."""

    shard_key: str
    keys: PublicKeys


def advertised(content: RecordDict) -> Advertised:
    """Read a node's public keys."""
    config = section(content.config_records, SECAGG)
    keys = PublicKeys(get(config, "cipher-key", bytes), get(config, "mask-key", bytes))
    if {len(keys.cipher), len(keys.mask)} != {32}:
        raise WireError("public keys must have 32 bytes")
    return Advertised(get(config, "shard-key", str), keys)


def texts_record(texts: Texts) -> ConfigRecord:
    """Fields of bytes by shard."""
    fields: dict[str, object] = {"shard-key": texts.shard_key, "proof": texts.proof}
    for prefix, values in (("first", texts.values), ("second", texts.more)):
        fields[f"{prefix}-names"] = sorted(values)
        fields[f"{prefix}-values"] = [values[n] for n in sorted(values)]
    return ConfigRecord(fields)  # type: ignore[arg-type]


def texts_reply(texts: Texts) -> RecordDict:
    """A reply of bytes by shard."""
    return RecordDict({SECAGG: texts_record(texts)})


def texts_of(content: RecordDict) -> Texts:
    """Read bytes by shard."""
    config, read = section(content.config_records, SECAGG), []
    for prefix in ("first", "second"):
        names = listed(config, f"{prefix}-names", str)
        values = listed(config, f"{prefix}-values", bytes)
        if not len(names) == len(set(names)) == len(values):
            raise WireError("names and values of a message of shares do not fit")
        read.append(dict(zip(names, values, strict=True)))
    shard, proof = get(config, "shard-key", str), get(config, "proof", bytes)
    return Texts(shard, read[0], read[1], proof)  # type: ignore[arg-type]


def sealed_fields(scope: Scope, shares: Mapping[str, bytes]) -> ConfigRecord:
    """What goes with a request for an upload: sealed shares for the node, by source."""
    names = sorted(shares)
    return ConfigRecord(
        {
            "what": scope.what,
            "session": scope.session,
            "sources": names,
            "shares": [shares[n] for n in names],
        }
    )


def sealed_of(content: RecordDict) -> dict[str, bytes]:
    """Sealed shares by source."""
    config = section(content.config_records, SECAGG)
    names, values = listed(config, "sources", str), listed(config, "shares", bytes)
    if not len(names) == len(set(names)) == len(values):
        raise WireError("sources and sealed shares do not fit")
    return dict(zip(names, values, strict=True))  # type: ignore[arg-type]


def upload_reply(upload: Upload) -> RecordDict:
    """A masked upload."""
    arrays = {TENSORS: Array(upload.vectors.tensors), FIGURES: Array(upload.vectors.figures)}
    fields = {
        "shard-key": upload.shard_key,
        "session": upload.session,
        "layout": upload.layout,
    }
    return RecordDict(
        {
            MASKED: ArrayRecord(arrays),
            SECAGG: ConfigRecord(dict(fields)),
        }
    )


def upload_of(content: RecordDict, bits: int) -> Upload:
    """Read a masked upload.

    Raises:
        WireError: for vectors of another kind or length than the layout says.

    """
    config = section(content.config_records, SECAGG)
    arrays, layout = section(content.array_records, MASKED), get(config, "layout", str)
    vectors = Vectors(_words(arrays, TENSORS, bits), _words(arrays, FIGURES, 64))
    if (len(vectors.tensors), len(vectors.figures)) != sizes(layout):
        raise WireError("a masked upload does not have the length of its layout")
    return Upload(
        shard_key=get(config, "shard-key", str),
        session=get(config, "session", str),
        vectors=vectors,
        layout=layout,
    )


def _words(arrays: ArrayRecord, name: str, bits: int) -> Words:
    try:
        words: Words = np.asarray(arrays[name].numpy())
    except (KeyError, TypeError, ValueError, EOFError, OSError) as error:
        raise WireError(f"masked {name} cannot be decoded: {error}") from error
    if words.ndim != 1 or words.dtype != UNSIGNED[bits]:
        raise WireError(f"masked {name} must be a vector of {bits} bit numbers")
    return words


def listed(config: Mapping[str, object], key: str, kind: type) -> Sequence[object]:
    """The list ``key``, whose elements are of one type."""
    values = get(config, key, list)
    if not all(type(v) is kind for v in values):
        raise WireError(f"field {key!r} must be a list of {kind.__name__}")
    return values


def survivors_of(content: RecordDict) -> tuple[str, ...]:
    """Distinct shards of a request to unmask, ascending."""
    config = section(content.config_records, SECAGG)
    names = [str(n) for n in listed(config, "survivors", str)]
    if len(set(names)) != len(names):
        raise WireError("survivors must be distinct")
    return tuple(sorted(names))
