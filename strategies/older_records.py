"""Records of a training request for users who start from older shared parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from strategies.codec import WireError, from_arrays, to_arrays
from strategies.fields import get, pack, section, unpack, user_index
from strategies.messages import Older

OLDER, ABOUT = "older/", "about-older/"


def encode_older(older: Sequence[Older]) -> dict[str, ArrayRecord | ConfigRecord | MetricRecord]:
    """Two records a version."""
    records: dict[str, ArrayRecord | ConfigRecord | MetricRecord] = {}
    for part in older:
        records[f"{OLDER}{part.version}"] = to_arrays(part.shared)
        records[f"{ABOUT}{part.version}"] = ConfigRecord(
            {"users": pack(part.users), "weight": float(part.weight)}
        )
    return records


def decode_older(content: RecordDict) -> tuple[Older, ...]:
    """Read them, by ascending version.

    Raises:
        WireError: for a version without its users, or a weight that is not in [0, 1].

    """
    found = []
    for name, record in content.array_records.items():
        if name.startswith(OLDER):
            version = user_index(name, OLDER)
            about = section(content.config_records, f"{ABOUT}{version}")
            users, weight = unpack(get(about, "users", bytes)), _weight(get(about, "weight", float))
            found.append(Older(version, users, weight, from_arrays(record)))
    return tuple(sorted(found, key=lambda part: part.version))


def _weight(value: float) -> float:
    if not (math.isfinite(value) and 0 <= value <= 1):
        raise WireError(f"weight of older updates must be within 0 and 1, got {value}")
    return value
