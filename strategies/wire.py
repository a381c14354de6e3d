"""Typed messages to and from Flower records: the one name under which all of them are used.

Every request carries the resolved configuration as JSON: a node never reads Flower's run
configuration. Decoding checks everything and raises :class:`WireError` with the reason.
"""

from strategies.evaluate_records import (
    decode_evaluate,
    decode_evaluate_reply,
    encode_evaluate,
    encode_evaluate_reply,
    encode_means,
)
from strategies.hello_records import (
    decode_header,
    decode_hello,
    decode_hello_request,
    decode_item_counts,
    decode_refusal,
    encode_header,
    encode_hello,
    encode_hello_request,
    encode_item_counts,
    encode_refusal,
    encode_request,
)
from strategies.record_keys import (
    ARRAYS,
    CONFIG,
    EXPOSURE,
    METRICS,
)
from strategies.train_records import (
    attach_evaluation,
    decode_downlink,
    decode_uplink,
    encode_downlink,
    encode_uplink,
    encode_weights,
)

__all__ = [
    "ARRAYS",
    "CONFIG",
    "EXPOSURE",
    "METRICS",
    "attach_evaluation",
    "decode_downlink",
    "decode_evaluate",
    "decode_evaluate_reply",
    "decode_header",
    "decode_hello",
    "decode_hello_request",
    "decode_item_counts",
    "decode_refusal",
    "decode_uplink",
    "encode_downlink",
    "encode_evaluate",
    "encode_evaluate_reply",
    "encode_header",
    "encode_hello",
    "encode_hello_request",
    "encode_item_counts",
    "encode_means",
    "encode_refusal",
    "encode_request",
    "encode_uplink",
    "encode_weights",
]
