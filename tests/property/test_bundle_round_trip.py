"""Arrays travel as one and come out the same to the byte; a damaged bundle is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from strategies.bundle import BUNDLE, bundled, is_bundled, unbundled
from strategies.codec import WireError

ARRAYS = st.dictionaries(
    st.text(min_size=1, max_size=8),
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.uint8]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    ),
    max_size=4,
)
RECORDS = st.dictionaries(
    st.sampled_from(["arrays", "row_weights", "exposure"]), ARRAYS, max_size=3
)


def content_of(records: dict[str, dict[str, np.ndarray]]) -> RecordDict:
    made = {n: ArrayRecord({k: Array(a) for k, a in found.items()}) for n, found in records.items()}
    scalars = {"config": ConfigRecord({"a": "b"}), "metrics": MetricRecord({"c": 1.5})}
    return RecordDict({**made, **scalars})


@given(RECORDS)
def test_round_trip(records: dict[str, dict[str, np.ndarray]]) -> None:
    content = content_of(records)
    one = bundled(content)
    filled = {name for name, found in records.items() if found}
    assert is_bundled(one) == bool(filled)
    assert sum(len(record) for record in one.array_records.values()) == bool(filled)
    back = unbundled(one)
    assert back.config_records["config"] == content.config_records["config"]
    assert back.metric_records["metrics"] == content.metric_records["metrics"]
    assert set(back.array_records) == set(records)  # those without an array as well
    for name in records:
        before, after = content.array_records[name], back.array_records[name]
        assert list(before) == list(after)
        for key in before:
            assert before[key] == after[key]
            np.testing.assert_array_equal(after[key].numpy(), records[name][key])


def test_what_is_not_bundled_stays() -> None:
    content = content_of({"arrays": {"x": np.arange(3)}})
    assert unbundled(content) is content


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda layout, data: (layout, data[:-1]), "ends within 'x'"),
        (lambda layout, data: (layout, data + b"0"), "1 bytes are left over"),
        (lambda layout, data: ([[*layout[0][:5], -1]], data), "ends within"),
        (lambda layout, data: (["no"], data), "cannot be read"),
        (lambda layout, data: (7, data), "cannot be read"),
    ],
)
def test_a_damaged_bundle_is_refused(change: object, words: str) -> None:
    one = bundled(content_of({"arrays": {"x": np.arange(3)}}))
    ((name, array),) = one.array_records[BUNDLE].items()
    layout, data = change(json.loads(name), array.data)  # type: ignore[operator]
    broken = Array(dtype="uint8", shape=(len(data),), stype=BUNDLE, data=data)
    with pytest.raises(WireError, match=words):
        unbundled(RecordDict({BUNDLE: ArrayRecord({json.dumps(layout): broken})}))


def test_two_arrays_are_no_bundle() -> None:
    array = Array(np.arange(3))
    with pytest.raises(WireError, match="cannot be read"):
        unbundled(RecordDict({BUNDLE: ArrayRecord({"a": array, "b": array})}))
