"""Records of training: the request of a round, and a node's sum in reply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from models.types import Tensors, Update
from strategies.by_user_records import decode_user_updates, encode_user_updates
from strategies.codec import (
    Decoder,
    WireError,
    from_arrays,
    from_sparse_arrays,
    to_arrays,
    to_sparse_arrays,
)
from strategies.evaluate_records import decode_evaluate_reply
from strategies.fields import (
    get,
    indices,
    integers,
    pack,
    prefixed,
    row_weights_of,
    seconds_of,
    section,
)
from strategies.hello_records import decode_header, encode_header
from strategies.individual import decode_individual, encode_individual
from strategies.messages import Downlink, EvaluateReply, Uplink
from strategies.older_records import decode_older, encode_older
from strategies.personal_records import encode_personal, personal_of
from strategies.record_keys import (
    ARRAYS,
    CONFIG,
    EVALUATION,
    METRICS,
    NUM_EXAMPLES,
    ROW_WEIGHTS,
    STOCK_ROUND,
    SUM,
)


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
    return RecordDict({**records, **encode_personal(downlink.personal)})


def decode_downlink(content: RecordDict, decode: Decoder = from_arrays) -> Downlink:
    """Read a training request, ours or a stock Flower strategy's (which knows only rounds).

    ``decode`` reads the shared parameters, so that a process may decode them once.
    """
    config = section(content.config_records, CONFIG)
    stock = "round" not in config
    round_ = get(config, STOCK_ROUND if stock else "round", int)
    return Downlink(
        header=decode_header(content),
        round=round_,
        base_round=round_ - 1 if stock else get(config, "base-round", int),
        keep_rounds=() if stock else integers(config, "keep-rounds"),
        users=indices(config, "users"),
        shared=decode(section(content.array_records, ARRAYS)),
        personal=personal_of(content),
        evaluate="" if stock else _evaluate(get(config, "evaluate", str)),
        ranked=indices(config, "ranked"),
        noise_std=0.0 if stock else _noise_std(get(config, "noise-std", float)),
        reply_weights=stock or get(config, "reply-weights", bool),
        older=decode_older(content),
    )


def _evaluate(text: str) -> Literal["", "sampled", "full"]:
    if text in ("", "sampled", "full"):
        return text  # type: ignore[return-value]
    raise WireError(f"evaluate must be sampled, full or empty, got {text!r}")


def _noise_std(value: float) -> float:
    if not 0 <= value < float("inf"):
        raise WireError(f"noise-std must be finite and not negative, got {value}")
    return value


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
    weight, num_users = _weight_and_users(metrics)
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


def _weight_and_users(metrics: MetricRecord) -> tuple[float, int]:
    weight, num_users = get(metrics, "weight", float), get(metrics, "num-users", int)
    if num_users < 1:
        raise WireError(f"an uplink needs at least one user, got {num_users}")
    if not 0 < weight < float("inf"):
        raise WireError(f"weight must be positive and finite, got {weight}")
    return weight, num_users


def attach_evaluation(uplink: RecordDict, evaluation: RecordDict) -> RecordDict:
    """A training reply that carries an evaluation reply as well."""
    return RecordDict({**uplink, **{EVALUATION + n: r for n, r in evaluation.items()}})


def _evaluation_of(content: RecordDict) -> EvaluateReply | None:
    records = {
        n.removeprefix(EVALUATION): r for n, r in content.items() if n.startswith(EVALUATION)
    }
    return decode_evaluate_reply(RecordDict(records)) if records else None


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
