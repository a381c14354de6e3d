"""Typed messages to and from Flower records; the only place with record keys.

Every request carries the resolved configuration as JSON: a node never reads Flower's run
configuration. Decoding checks everything and raises :class:`WireError` with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from models.types import IntArray, Tensors, Update
from strategies.by_user_records import decode_user_updates, encode_user_updates
from strategies.codec import (
    WireError,
    from_arrays,
    from_sparse_arrays,
    to_arrays,
    to_sparse_arrays,
)
from strategies.fields import (
    get,
    integer_vector,
    integers,
    pack,
    prefixed,
    row_weights_of,
    seconds_of,
    section,
    unpack,
    user_index,
)
from strategies.individual import decode_individual, encode_individual
from strategies.messages import (
    Downlink,
    EvaluateReply,
    EvaluateRequest,
    Header,
    HelloReply,
    HelloRequest,
    Uplink,
)
from strategies.older_records import decode_older, encode_older
from strategies.rank_records import RANKS, decode_ranks, encode_ranks

Decoder = Callable[[ArrayRecord], Tensors]

ARRAYS, CONFIG, METRICS, ROW_WEIGHTS = "arrays", "config", "metrics", "row_weights"
PERSONAL, EXPOSURE, SUM, COUNT = "personal/", "exposure", "sum/", "count/"
NUM_EXAMPLES, ITEM_COUNTS = "num-examples", "item_counts"
STOCK_ROUND = "server-round"
EVALUATION = "evaluation/"
"""Before the names of an evaluation's records in a training reply."""


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
    users, packed = unpack(get(config, "users", bytes)), config.get("activity")
    activity = unpack(packed) if isinstance(packed, bytes) else None
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


def encode_downlink(downlink: Downlink, shared: ArrayRecord | None = None) -> RecordDict:
    """Records of a training request; ``shared`` saves encoding the same tensors per node."""
    fields: dict[str, str | int | float | bytes | bool | list[int]] = {
        **encode_header(downlink.header),
        "round": downlink.round,
        "base-round": downlink.base_round,
        "keep-rounds": list(downlink.keep_rounds),
        "reply-weights": downlink.reply_weights,
        "evaluate": downlink.evaluate,
        "noise-std": float(downlink.noise_std),
    }
    for name, users in (("users", downlink.users), ("ranked", downlink.ranked)):
        if users is not None:
            fields[name] = pack(users)
    records: dict[str, ArrayRecord | ConfigRecord | MetricRecord] = {
        ARRAYS: to_arrays(downlink.shared) if shared is None else shared,
        CONFIG: ConfigRecord(dict(fields)),
    }
    records |= encode_older(downlink.older)
    return RecordDict({**records, **_encode_personal(downlink.personal)})


def decode_downlink(content: RecordDict, decode: Decoder = from_arrays) -> Downlink:
    """Read a training request, ours or a stock Flower strategy's (which knows only rounds).

    ``decode`` reads the shared parameters, so that a process may decode them once.
    """
    config = section(content.config_records, CONFIG)
    stock = "round" not in config
    round_ = get(config, STOCK_ROUND if stock else "round", int)
    packed, ranked = config.get("users"), config.get("ranked")
    return Downlink(
        header=decode_header(content),
        round=round_,
        base_round=round_ - 1 if stock else get(config, "base-round", int),
        keep_rounds=() if stock else integers(config, "keep-rounds"),
        users=unpack(packed) if isinstance(packed, bytes) else None,
        shared=decode(section(content.array_records, ARRAYS)),
        personal=_personal_of(content),
        evaluate="" if stock else _evaluate(get(config, "evaluate", str)),
        ranked=unpack(ranked) if isinstance(ranked, bytes) else None,
        noise_std=0.0 if stock else _noise_std(get(config, "noise-std", float)),
        reply_weights=stock or get(config, "reply-weights", bool),
        older=decode_older(content),
    )


def _encode_personal(personal: Mapping[int, Tensors]) -> dict[str, ArrayRecord]:
    return {f"{PERSONAL}{user}": to_arrays(tensors) for user, tensors in personal.items()}


def _personal_of(content: RecordDict) -> dict[int, Tensors]:
    return {
        user_index(n, PERSONAL): from_arrays(r)
        for n, r in content.array_records.items()
        if n.startswith(PERSONAL)
    }


def _evaluate(text: str) -> Literal["", "sampled", "full"]:
    if text in ("", "sampled", "full"):
        return text  # type: ignore[return-value]
    raise WireError(f"evaluate must be sampled, full or empty, got {text!r}")


def _noise_std(value: float) -> float:
    if not 0 <= value < float("inf"):
        raise WireError(f"noise-std must be finite and not negative, got {value}")
    return value


def attach_evaluation(uplink: RecordDict, evaluation: RecordDict) -> RecordDict:
    """A training reply that carries an evaluation reply as well."""
    return RecordDict({**uplink, **{EVALUATION + n: r for n, r in evaluation.items()}})


def _evaluation_of(content: RecordDict) -> EvaluateReply | None:
    records = {
        n.removeprefix(EVALUATION): r for n, r in content.items() if n.startswith(EVALUATION)
    }
    return decode_evaluate_reply(RecordDict(records)) if records else None


def encode_uplink(uplink: Uplink, tables: Iterable[str]) -> RecordDict:
    """Records of a training reply; item rows go sparse when that is smaller."""
    records: dict[str, ArrayRecord | ConfigRecord | MetricRecord] = {
        ARRAYS: to_sparse_arrays(uplink.update.tensors, tables),
        CONFIG: ConfigRecord({"shard-key": uplink.shard_key, "round": uplink.round}),
        METRICS: MetricRecord(
            {
                "num-users": uplink.num_users,
                "weight": float(uplink.update.weight),
                "seconds": float(uplink.seconds),
                **{SUM + n: float(v) for n, v in uplink.metrics.items()},
            }
        ),
    }
    if uplink.update.row_weights is not None:
        records[ROW_WEIGHTS] = to_arrays(uplink.update.row_weights)
    if uplink.individual is not None:
        records |= encode_individual(uplink.individual)
    if uplink.by_user is not None:
        records |= encode_user_updates(uplink.by_user)
    return RecordDict(dict(records))


def decode_uplink(
    content: RecordDict,
    template: Tensors,
    individual: Tensors | None = None,
    by_user: Tensors | None = None,
) -> Uplink:
    """Read and check a training reply against the shapes of a sum of updates.

    ``individual``: shapes of one user's upload, where each user's is to be there; ``by_user``:
    shapes of the shared parameters, where each user's update is.

    Raises:
        WireError: for anything missing, misshapen, not finite, or a weight that is not positive.

    """
    config, metrics = (
        section(content.config_records, CONFIG),
        section(content.metric_records, METRICS),
    )
    weight, num_users = get(metrics, "weight", float), get(metrics, "num-users", int)
    if num_users < 1:
        raise WireError(f"an uplink needs at least one user, got {num_users}")
    if not 0 < weight < float("inf"):
        raise WireError(f"weight must be positive and finite, got {weight}")
    rows = content.array_records.get(ROW_WEIGHTS)
    single = None if individual is None else decode_individual(content, individual)
    if single is not None and len(single) != num_users:
        raise WireError(f"{len(single)} individual updates of {num_users} users")
    own = None if by_user is None else decode_user_updates(content, by_user)
    if own is not None and len(own) != num_users:
        raise WireError(f"{len(own)} updates of single users, of {num_users} users")
    return Uplink(
        shard_key=get(config, "shard-key", str),
        round=get(config, "round", int),
        num_users=num_users,
        update=Update(
            tensors=from_sparse_arrays(section(content.array_records, ARRAYS), template),
            weight=weight,
            row_weights=None if rows is None else row_weights_of(rows, template),
        ),
        metrics=prefixed(metrics, SUM),
        seconds=seconds_of(metrics),
        individual=single,
        by_user=own,
        evaluation=_evaluation_of(content),
    )


def encode_weights(
    shared: Tensors, num_examples: float, metrics: Mapping[str, float]
) -> RecordDict:
    """Reply to a stock Flower strategy: averaged weights and a sample count."""
    scalars = {n.replace("/", "-"): float(v) for n, v in metrics.items()}
    return RecordDict(
        {
            ARRAYS: to_arrays(shared),
            METRICS: MetricRecord({NUM_EXAMPLES: float(num_examples), **scalars}),
        }
    )


def encode_evaluate(request: EvaluateRequest, shared: ArrayRecord | None = None) -> RecordDict:
    """Records of an evaluation request; ``shared`` as in :func:`encode_downlink`."""
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
    personal = _encode_personal(request.personal)
    return RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(dict(fields)), **personal})


def decode_evaluate(content: RecordDict, decode: Decoder = from_arrays) -> EvaluateRequest:
    """Read an evaluation request, ours or a stock Flower strategy's.

    ``decode`` as in :func:`decode_downlink`.
    """
    config = section(content.config_records, CONFIG)
    stock = "round" not in config
    round_ = get(config, STOCK_ROUND if stock else "round", int)
    packed = config.get("users")
    return EvaluateRequest(
        header=decode_header(content),
        round=round_,
        state_round=round_ if stock else get(config, "state-round", int),
        scorer="model" if stock else get(config, "scorer", str),
        full=False if stock else get(config, "full", bool),
        shared=decode(section(content.array_records, ARRAYS)),
        users=unpack(packed) if isinstance(packed, bytes) else None,
        personal=_personal_of(content),
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


def encode_item_counts(counts_I: IntArray) -> RecordDict:
    """Records of the number of training interactions of each item on a node."""
    return RecordDict({ARRAYS: ArrayRecord({ITEM_COUNTS: Array(counts_I)})})


def decode_item_counts(content: RecordDict, num_items: int) -> IntArray:
    """Read item counts (I,)."""
    counts_I = integer_vector(section(content.array_records, ARRAYS), ITEM_COUNTS)
    if len(counts_I) != num_items:
        raise WireError(f"item counts must be ({num_items},), got ({len(counts_I)},)")
    return counts_I
