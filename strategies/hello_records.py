"""Records of what comes before training: header, hello, refusal, item counts."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from models.types import IntArray
from strategies.codec import WireError
from strategies.fields import get, indices, integer_vector, pack, section, unpack
from strategies.messages import Header, HelloReply, HelloRequest
from strategies.record_keys import ARRAYS, CONFIG, ITEM_COUNTS


def encode_header(header: Header) -> dict[str, str | int]:
    """Record fields of a header."""
    return {
        "run-id": header.run_id,
        "incarnation": header.incarnation,
        "config-json": header.config_json,
        "code": header.code,
    }


def decode_header(content: RecordDict) -> Header:
    """Read the header of any request."""
    config = section(content.config_records, CONFIG)
    return Header(
        run_id=get(config, "run-id", str),
        incarnation=get(config, "incarnation", int),
        config_json=get(config, "config-json", str),
        code=get(config, "code", str),
    )


def encode_request(header: Header) -> RecordDict:
    """A request that carries nothing but its header: item counts."""
    return RecordDict({CONFIG: ConfigRecord(dict(encode_header(header)))})


def encode_hello_request(request: HelloRequest) -> RecordDict:
    """Records of a hello."""
    fields = {"may-start": request.may_start, "resume-round": request.resume_round}
    return RecordDict({CONFIG: ConfigRecord({**encode_header(request.header), **fields})})


def decode_hello_request(content: RecordDict) -> HelloRequest:
    """Read a hello."""
    header, config = decode_header(content), section(content.config_records, CONFIG)
    return HelloRequest(header, get(config, "may-start", bool), get(config, "resume-round", int))


def encode_hello(reply: HelloReply) -> RecordDict:
    """Records of a hello reply."""
    fields: dict[str, str | bytes | int | bool] = {
        "shard-key": reply.shard_key,
        "users": pack(reply.users),
        "code": reply.code,
        "data": reply.data,
        "catalogue": reply.catalogue,
        "num-items": reply.num_items,
        "population": reply.population,
        "left-out": reply.left_out,
        "last-round": reply.last_round,
        "new-run": reply.new_run,
    }
    if reply.activity is not None:
        fields["activity"] = pack(reply.activity)
    return RecordDict({CONFIG: ConfigRecord(dict(fields))})


def decode_hello(content: RecordDict) -> HelloReply:
    """Read a hello reply."""
    config = section(content.config_records, CONFIG)
    users, activity = unpack(get(config, "users", bytes)), indices(config, "activity")
    if activity is not None and len(activity) != len(users):
        raise WireError(f"activity is of {len(activity)} users instead of {len(users)}")
    return HelloReply(
        shard_key=get(config, "shard-key", str),
        users=users,
        activity=activity,
        code=get(config, "code", str),
        data=get(config, "data", str),
        catalogue=get(config, "catalogue", str),
        num_items=get(config, "num-items", int),
        population=get(config, "population", int),
        left_out=get(config, "left-out", int),
        last_round=get(config, "last-round", int),
        new_run=get(config, "new-run", bool),
    )


def encode_refusal(header: Header, reason: str) -> RecordDict:
    """Tells a node why it is not admitted to the run."""
    return RecordDict({CONFIG: ConfigRecord({**encode_header(header), "reason": reason})})


def decode_refusal(content: RecordDict) -> str:
    """Read the reason."""
    return get(section(content.config_records, CONFIG), "reason", str)


def encode_item_counts(counts_I: IntArray) -> RecordDict:
    """Records of the number of training interactions of each item on a node."""
    return RecordDict({ARRAYS: ArrayRecord({ITEM_COUNTS: Array(counts_I)})})


def decode_item_counts(content: RecordDict, num_items: int) -> IntArray:
    """Read item counts (I,)."""
    counts_I = integer_vector(section(content.array_records, ARRAYS), ITEM_COUNTS)
    if len(counts_I) != num_items:
        raise WireError(f"item counts must be ({num_items},), got ({len(counts_I)},)")
    return counts_I
