"""Uploads of single users on the wire: what is checked, and an order that nodes do not decide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from models.types import IndividualUpdates, Tensors, Update
from strategies import wire
from strategies.codec import WireError, to_arrays
from strategies.fields import pack
from strategies.individual import decode_individual, encode_individual, gathered
from strategies.messages import EvaluateRequest, Header, Uplink

TEMPLATE: Tensors = {"table": torch.zeros(3, 2), "count": torch.zeros(())}


def updates(*users: int) -> IndividualUpdates:
    """User u uploads a table of u and a count of 10 u."""
    tables = torch.stack([torch.full((3, 2), float(u)) for u in users])
    return IndividualUpdates(
        np.array(users), {"table": tables, "count": torch.tensor([10.0 * u for u in users])}
    )


def content(of: IndividualUpdates) -> RecordDict:
    return RecordDict(dict(encode_individual(of)))


def uplink(of: IndividualUpdates) -> RecordDict:
    known = Uplink("a", 1, len(of), Update({}, float(len(of))), {}, 0.1, of)
    return wire.encode_uplink(known, ())


def test_round_trip_in_an_uplink() -> None:
    back = wire.decode_uplink(uplink(updates(2, 5)), {}, TEMPLATE)
    assert back.individual is not None
    assert back.individual.users_U.tolist() == [2, 5]
    assert back.individual.tensors["table"][:, 0, 0].tolist() == [2.0, 5.0]
    assert back.individual.tensors["count"].tolist() == [20.0, 50.0]
    assert back.update.tensors == {}


def test_nodes_do_not_decide_the_order() -> None:
    together = gathered([updates(1, 2, 4, 7)])
    apart = gathered([updates(2, 7), updates(4), updates(1)])
    assert apart.users_U.tolist() == [1, 2, 4, 7]
    assert all(torch.equal(apart.tensors[n], together.tensors[n]) for n in TEMPLATE)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"table": torch.zeros(1, 3, 3)}, r"'table' is \(1, 3, 3\) .*, expected \(1, 3, 2\)"),
        ({"table": torch.zeros(2, 3, 2)}, r"'table' is \(2, 3, 2\)"),
        ({"table": torch.zeros(1, 3, 2).double()}, "float64, expected"),
        ({"table": torch.full((1, 3, 2), torch.nan)}, "NaN or infinite"),
        ({"other": torch.zeros(1)}, r"\['count', 'other', 'table'\], expected"),
    ],
)
def test_uploads_of_another_kind_are_refused(change: Tensors, reason: str) -> None:
    good = updates(3)
    bad = replace(good, tensors={**good.tensors, **change})
    with pytest.raises(WireError, match=reason):
        decode_individual(content(bad), TEMPLATE)


@pytest.mark.parametrize("users", [[], [5, 2], [2, 2], [-1, 2]])
def test_users_must_ascend(users: list[int]) -> None:
    records = dict(encode_individual(updates(1, 2)))
    records["individual-users"] = ConfigRecord({"users": pack(np.array(users, dtype=np.int64))})
    with pytest.raises(WireError, match="must ascend"):
        decode_individual(RecordDict(dict(records)), TEMPLATE)


def test_an_uplink_without_them_or_with_too_few_is_refused() -> None:
    plain = wire.encode_uplink(Uplink("a", 1, 1, Update({}, 1.0), {}, 0.1), ())
    with pytest.raises(WireError, match="'individual-users' is missing"):
        wire.decode_uplink(plain, {}, TEMPLATE)
    short = wire.encode_uplink(Uplink("a", 1, 3, Update({}, 3.0), {}, 0.1, updates(1, 2)), ())
    with pytest.raises(WireError, match="2 individual updates of 3 users"):
        wire.decode_uplink(short, {}, TEMPLATE)


def test_personal_tensors_of_an_evaluation() -> None:
    head = Header("run", 0, "{}")
    asked = EvaluateRequest(head, 3, 3, "model", False, {"a": torch.ones(2)})
    asked = replace(asked, personal={4: {"own": torch.arange(3.0)}})
    back = wire.decode_evaluate(wire.encode_evaluate(asked))
    assert back.personal.keys() == {4}
    assert torch.equal(back.personal[4]["own"], torch.arange(3.0))
    records = wire.encode_evaluate(asked)
    records["personal/x"] = to_arrays({"own": torch.ones(1)})
    assert isinstance(records["personal/x"], ArrayRecord)
    with pytest.raises(WireError, match="must end with a user's index"):
        wire.decode_evaluate(records)
