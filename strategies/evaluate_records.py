"""Records of an evaluation: the request, and a node's sums of metrics in reply."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from strategies.codec import Decoder, from_arrays, to_arrays
from strategies.fields import get, indices, integer_vector, pack, prefixed, seconds_of, section
from strategies.hello_records import decode_header, encode_header
from strategies.messages import EvaluateReply, EvaluateRequest
from strategies.personal_records import encode_personal, personal_of
from strategies.rank_records import RANKS, decode_ranks, encode_ranks
from strategies.record_keys import (
    ARRAYS,
    CONFIG,
    COUNT,
    EXPOSURE,
    METRICS,
    NUM_EXAMPLES,
    STOCK_ROUND,
    SUM,
)


def encode_evaluate(request: EvaluateRequest, shared: ArrayRecord | None = None) -> RecordDict:
    """Records of an evaluation request; ``shared`` as in a downlink."""
    fields: dict[str, str | int | bool | bytes] = {
        **encode_header(request.header),
        "round": request.round,
        "state-round": request.state_round,
        "scorer": request.scorer,
        "full": request.full,
    }
    if request.users is not None:
        fields["users"] = pack(request.users)
    arrays = to_arrays(request.shared) if shared is None else shared
    personal = encode_personal(request.personal)
    return RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(dict(fields)), **personal})


def decode_evaluate(content: RecordDict, decode: Decoder = from_arrays) -> EvaluateRequest:
    """Read an evaluation request, ours or a stock Flower strategy's.

    ``decode`` as for a downlink.
    """
    config = section(content.config_records, CONFIG)
    stock = "round" not in config
    round_ = get(config, STOCK_ROUND if stock else "round", int)
    return EvaluateRequest(
        header=decode_header(content),
        round=round_,
        state_round=round_ if stock else get(config, "state-round", int),
        scorer="model" if stock else get(config, "scorer", str),
        full=False if stock else get(config, "full", bool),
        shared=decode(section(content.array_records, ARRAYS)),
        users=indices(config, "users"),
        personal=personal_of(content),
        reply_means=stock,
    )


def encode_means(reply: EvaluateReply) -> RecordDict:
    """Reply to a stock Flower strategy: means over the node's users and their number."""
    means = {n: v / reply.counts[n] for n, v in reply.metrics.items() if reply.counts[n] > 0}
    users = max(reply.counts.values(), default=0.0)
    return RecordDict({METRICS: MetricRecord({NUM_EXAMPLES: float(users), **means})})


def encode_evaluate_reply(reply: EvaluateReply) -> RecordDict:
    """Records of an evaluation reply."""
    metrics = {
        "seconds": float(reply.seconds),
        **{SUM + n: v for n, v in reply.metrics.items()},
        **{COUNT + n: v for n, v in reply.counts.items()},
    }
    records: dict[str, ArrayRecord | ConfigRecord | MetricRecord] = {
        METRICS: MetricRecord(dict(metrics)),
        CONFIG: ConfigRecord({"shard-key": reply.shard_key, "round": reply.round}),
    }
    if reply.exposure_I is not None:
        records[EXPOSURE] = ArrayRecord({EXPOSURE: Array(reply.exposure_I)})
    if reply.ranks is not None:
        records[RANKS] = encode_ranks(reply.ranks)
    return RecordDict(dict(records))


def decode_evaluate_reply(content: RecordDict) -> EvaluateReply:
    """Read an evaluation reply.

    Raises:
        WireError: for anything missing, of another kind, or not finite.

    """
    config = section(content.config_records, CONFIG)
    metrics = section(content.metric_records, METRICS)
    exposure = content.array_records.get(EXPOSURE)
    return EvaluateReply(
        shard_key=get(config, "shard-key", str),
        round=get(config, "round", int),
        metrics=prefixed(metrics, SUM),
        counts=prefixed(metrics, COUNT),
        exposure_I=None if exposure is None else integer_vector(exposure, EXPOSURE),
        seconds=seconds_of(metrics),
        ranks=decode_ranks(content),
    )
