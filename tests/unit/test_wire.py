"""Typed messages to records and back; what a malformed record is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from models.types import Update
from strategies import wire
from strategies.codec import WireError, to_arrays
from strategies.fields import pack
from strategies.messages import (
    Downlink,
    EvaluateReply,
    EvaluateRequest,
    Header,
    HelloReply,
    Older,
    Uplink,
)

HEADER = Header("run-1", 2, '{"seed": 0}', "c0de")
SHARED = {"table": torch.arange(12.0).reshape(4, 3), "w": torch.ones(2)}
DOWNLINK = Downlink(
    HEADER, 7, 6, (5, 0), np.array([3, 1]), SHARED, personal={1: {"own": torch.ones(2)}}
)
UPLINK = Uplink(
    "000000-of-000002",
    7,
    2,
    Update({n: t.clone() for n, t in SHARED.items()}, 2.0, {"table": torch.ones(4)}),
    {"loss": 1.5},
    0.25,
)
REPLY = EvaluateReply(
    "000000-of-000002",
    7,
    {"test/full/hr@10": 3.0},
    {"test/full/hr@10": 4.0},
    np.array([0, 2]),
    0.5,
)


def same_tensors(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return list(a) == list(b) and all(torch.equal(a[n], b[n]) for n in a)


def changed(content: RecordDict, record: str, **fields: object) -> RecordDict:
    """A copy of the records with fields set, or removed where None."""
    old = content[record]
    values = {k: v for k, v in old.items() if fields.get(k.replace("-", "_"), v) is not None}
    values |= {k.replace("_", "-"): v for k, v in fields.items() if v is not None}
    return RecordDict({**content, record: type(old)(values)})


def test_activity_is_of_as_many_users() -> None:
    hello = HelloReply(
        "000001-of-000002", np.arange(5, 9), "c", "d", "e", 40, 9, activity=np.arange(4)
    )
    found = wire.decode_hello(wire.encode_hello(hello)).activity
    assert found is not None and found.tolist() == [0, 1, 2, 3]
    with pytest.raises(WireError, match="activity is of 3 users instead of 4"):
        wire.decode_hello(wire.encode_hello(replace(hello, activity=np.arange(3))))


def test_older_parameters_go_with_their_users_and_weight() -> None:
    older = tuple(
        Older(version, np.array([user]), weight, {"table": torch.full((4, 3), weight)})
        for version, user, weight in ((2, 3, 0.25), (10, 1, 0.5))
    )
    found = wire.decode_downlink(wire.encode_downlink(replace(DOWNLINK, older=older))).older
    assert [(part.version, part.users.tolist(), part.weight) for part in found] == [
        (2, [3], 0.25),
        (10, [1], 0.5),
    ]
    assert all(same_tensors(a.shared, b.shared) for a, b in zip(found, older, strict=True))
    assert wire.decode_downlink(wire.encode_downlink(DOWNLINK)).older == ()


@pytest.mark.parametrize("weight", [-0.1, 1.5, float("nan"), 1])
def test_a_weight_of_older_updates_is_within_0_and_1(weight: float) -> None:
    older = (Older(2, np.array([3]), 0.5, SHARED),)
    content = wire.encode_downlink(replace(DOWNLINK, older=older))
    content["about-older/2"] = ConfigRecord({"users": pack(np.array([3])), "weight": weight})
    with pytest.raises(WireError, match="weight"):
        wire.decode_downlink(content)
    del content["about-older/2"]
    with pytest.raises(WireError, match="about-older/2"):
        wire.decode_downlink(content)


def test_hello_round_trip() -> None:
    hello = HelloReply("000001-of-000002", np.arange(5, 9), "code", "data", "catalogue", 40, 9, 3)
    back = wire.decode_hello(wire.encode_hello(hello))
    np.testing.assert_array_equal(back.users, hello.users)
    assert replace(back, users=hello.users) == hello


def test_header_of_a_request_without_content() -> None:
    assert wire.decode_header(wire.encode_request(HEADER)) == HEADER


def test_downlink_round_trip() -> None:
    back = wire.decode_downlink(wire.encode_downlink(DOWNLINK))
    assert back.header == HEADER
    assert (back.round, back.base_round, back.keep_rounds) == (7, 6, (5, 0))
    assert back.users is not None and back.users.tolist() == [3, 1]
    assert same_tensors(back.shared, SHARED)
    assert same_tensors(back.personal[1], DOWNLINK.personal[1])
    assert not back.reply_weights
    everyone = replace(DOWNLINK, users=None, reply_weights=True, personal={})
    back = wire.decode_downlink(wire.encode_downlink(everyone))
    assert back.users is None and back.reply_weights


def test_shared_parameters_may_be_encoded_once_and_decoded_elsewhere() -> None:
    arrays = to_arrays(SHARED)
    content = wire.encode_downlink(replace(DOWNLINK, shared={}), arrays)
    assert content[wire.ARRAYS] is arrays
    seen: list[ArrayRecord] = []

    def decode(record: ArrayRecord) -> dict[str, torch.Tensor]:
        seen.append(record)
        return {"decoded": torch.ones(1)}

    assert list(wire.decode_downlink(content, decode).shared) == ["decoded"]
    assert seen == [arrays]


def test_a_stock_strategys_requests() -> None:
    """FedAvg of flwr sends its arrays, the given config and the number of the round."""
    config = ConfigRecord({**wire.encode_header(HEADER), "server-round": 3})
    content = RecordDict({wire.ARRAYS: to_arrays(SHARED), wire.CONFIG: config})
    request = wire.decode_downlink(content)
    assert (request.round, request.base_round, request.users) == (3, 2, None)
    assert request.reply_weights and request.keep_rounds == ()
    evaluation = wire.decode_evaluate(content)
    assert (evaluation.state_round, evaluation.scorer, evaluation.reply_means) == (3, "model", True)


@pytest.mark.parametrize(
    ("record", "fields", "message"),
    [
        (wire.CONFIG, {"run_id": None}, "'run-id' must be str, got None"),
        (wire.CONFIG, {"incarnation": True}, "'incarnation' must be int, got True"),
        (wire.CONFIG, {"round": 7.5}, "'round' must be int"),
        (wire.CONFIG, {"keep_rounds": [1.5]}, "'keep-rounds' must be a list of integers"),
        (wire.CONFIG, {"reply_weights": 1}, "'reply-weights' must be bool"),
        (wire.CONFIG, {"users": b"123"}, "multiple of 8 bytes"),
    ],
)
def test_malformed_downlinks(record: str, fields: dict[str, object], message: str) -> None:
    with pytest.raises(WireError, match=message):
        wire.decode_downlink(changed(wire.encode_downlink(DOWNLINK), record, **fields))


def test_missing_records_and_bad_names() -> None:
    content = wire.encode_downlink(DOWNLINK)
    for name in (wire.ARRAYS, wire.CONFIG):
        rest = RecordDict({k: v for k, v in content.items() if k != name})
        with pytest.raises(WireError, match=f"record '{name}' is missing"):
            wire.decode_downlink(rest)
    with pytest.raises(WireError, match="record 'config' is missing"):
        wire.decode_header(RecordDict())
    content["personal/x"] = to_arrays(SHARED)
    with pytest.raises(WireError, match="'personal/x' must end with a user's index"):
        wire.decode_downlink(content)


def test_uplink_round_trip() -> None:
    back = wire.decode_uplink(wire.encode_uplink(UPLINK, {"table"}), SHARED)
    assert same_tensors(back.update.tensors, UPLINK.update.tensors)
    assert back.update.row_weights is not None and UPLINK.update.row_weights is not None
    assert same_tensors(back.update.row_weights, UPLINK.update.row_weights)
    assert (back.shard_key, back.round, back.num_users) == ("000000-of-000002", 7, 2)
    assert (back.update.weight, back.metrics, back.seconds) == (2.0, {"loss": 1.5}, 0.25)


def test_weights_that_are_whole_numbers_are_accepted() -> None:
    uplink = replace(UPLINK, update=replace(UPLINK.update, weight=3), seconds=1)
    assert wire.decode_uplink(wire.encode_uplink(uplink, ()), SHARED).update.weight == 3.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight": 0.0}, "weight must be positive"),
        ({"weight": -1.0}, "weight must be positive"),
        ({"weight": float("nan")}, "weight must be positive"),
        ({"weight": float("inf")}, "weight must be positive"),
        ({"num_users": 0}, "at least one user"),
        ({"num_users": 1.0}, "'num-users' must be int"),
        ({"seconds": None}, "'seconds' must be float"),
        ({"seconds": -1.0}, "seconds must be finite and not negative"),
        ({"seconds": float("inf")}, "seconds must be finite and not negative"),
        ({"sum/loss": float("nan")}, "sum/loss must be a finite number, got nan"),
        ({"sum/loss": float("inf")}, "sum/loss must be a finite number, got inf"),
        ({"sum/loss": [1.0]}, r"sum/loss must be a finite number, got \[1.0\]"),
    ],
)
def test_malformed_uplink_numbers(fields: dict[str, object], message: str) -> None:
    content = wire.encode_uplink(UPLINK, ())
    with pytest.raises(WireError, match=message):
        wire.decode_uplink(changed(content, wire.METRICS, **fields), SHARED)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"other": torch.ones(4)}, "'other' do not fit"),
        ({"table": torch.ones(3)}, "'table' do not fit"),
        ({"table": -torch.ones(4)}, "finite and not negative"),
        ({"table": torch.full((4,), torch.inf)}, "finite and not negative"),
    ],
)
def test_malformed_row_weights(weights: dict[str, torch.Tensor], message: str) -> None:
    uplink = replace(UPLINK, update=replace(UPLINK.update, row_weights=weights))
    with pytest.raises(WireError, match=message):
        wire.decode_uplink(wire.encode_uplink(uplink, ()), SHARED)


def test_evaluate_round_trips() -> None:
    request = EvaluateRequest(HEADER, 7, 5, "popularity", True, SHARED)
    back = wire.decode_evaluate(wire.encode_evaluate(request))
    assert same_tensors(back.shared, SHARED)
    assert replace(back, shared=SHARED) == request
    reply = wire.decode_evaluate_reply(wire.encode_evaluate_reply(REPLY))
    assert reply.exposure_I is not None and reply.exposure_I.tolist() == [0, 2]
    assert replace(reply, exposure_I=None) == replace(REPLY, exposure_I=None)
    without = replace(REPLY, exposure_I=None)
    assert wire.decode_evaluate_reply(wire.encode_evaluate_reply(without)) == without


def test_exposure_of_another_kind_is_refused() -> None:
    content = wire.encode_evaluate_reply(REPLY)
    content[wire.EXPOSURE] = ArrayRecord({wire.EXPOSURE: Array(np.ones(2))})
    with pytest.raises(WireError, match="exposure must be a vector of int64"):
        wire.decode_evaluate_reply(content)


def test_means_for_a_stock_strategy() -> None:
    """3 hits of 4 users: a mean of 0.75, weighted by 4."""
    content = wire.encode_means(REPLY)
    metrics = content[wire.METRICS]
    assert isinstance(metrics, MetricRecord)
    assert dict(metrics) == {"num-examples": 4.0, "test/full/hr@10": 0.75}


def test_item_counts() -> None:
    counts_I = np.array([3, 0, 2])
    content = wire.encode_item_counts(counts_I)
    np.testing.assert_array_equal(wire.decode_item_counts(content, 3), counts_I)
    with pytest.raises(WireError, match=r"must be \(4,\), got \(3,\)"):
        wire.decode_item_counts(content, 4)
    with pytest.raises(WireError, match="vector of int64"):
        wire.decode_item_counts(wire.encode_item_counts(counts_I.astype(np.int32)), 3)
    with pytest.raises(WireError, match="'item_counts' cannot be decoded"):
        wire.decode_item_counts(RecordDict({wire.ARRAYS: ArrayRecord()}), 3)
