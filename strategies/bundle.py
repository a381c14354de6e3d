"""All arrays of a message as one: in a deployment every array costs requests of its own.

Flower moves each array as objects that are pushed and fetched one by one at every hop. Only the
way of travelling changes: the arrays that come out are the same to the byte.
"""

from __future__ import annotations

import json
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from strategies.codec import WireError

BUNDLE = "bundle"
"""Name of the record with the one array, and the array's type of serialisation."""


def bundled(content: RecordDict) -> RecordDict:
    """The same records with all arrays in one; the array's name says what is in it."""
    arrays = [
        (record, name, array)
        for record, found in content.array_records.items()
        for name, array in found.items()
    ]
    if not arrays:
        return content
    layout = [
        [record, name, array.dtype, list(array.shape), array.stype, len(array.data)]
        for record, name, array in arrays
    ]
    data = b"".join(array.data for _, _, array in arrays)
    one = Array(dtype="uint8", shape=(len(data),), stype=BUNDLE, data=data)
    # A record without arrays is not in the layout: it travels as it is.
    others = {n: r for n, r in content.items() if not isinstance(r, ArrayRecord) or not r}
    return RecordDict({**others, BUNDLE: ArrayRecord({json.dumps(layout): one})})


def is_bundled(content: RecordDict) -> bool:
    """Whether the arrays of a message were made into one."""
    return BUNDLE in content.array_records


def unbundled(content: RecordDict) -> RecordDict:
    """Inverse of :func:`bundled`; records that are not bundled are given back as they are.

    Raises:
        WireError: when the bundle is not what its name says.

    """
    if not is_bundled(content):
        return content
    try:
        ((name, one),) = content.array_records[BUNDLE].items()
        arrays = _cut(json.loads(name), one.data)
    except (ValueError, TypeError) as error:
        raise WireError(f"the bundle of arrays cannot be read: {error}") from error
    records: dict[str, ArrayRecord | ConfigRecord | MetricRecord] = {
        n: r for n, r in content.items() if n != BUNDLE
    }
    return RecordDict({**records, **{n: ArrayRecord(found) for n, found in arrays.items()}})


def _cut(layout: list[Any], data: bytes) -> dict[str, dict[str, Array]]:
    """Arrays by record and name."""
    found: dict[str, dict[str, Array]] = {}
    start = 0
    for record, name, dtype, shape, stype, size in layout:
        part = data[start : start + size]
        if size < 0 or len(part) != size:
            raise ValueError(f"it ends within {name!r}")
        array = Array(dtype=str(dtype), shape=tuple(shape), stype=str(stype), data=part)
        found.setdefault(str(record), {})[str(name)] = array
        start += size
    if start != len(data):
        raise ValueError(f"{len(data) - start} bytes are left over")
    return found
