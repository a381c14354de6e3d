"""Names of jobs: what differs between them, safe as the name of a run and of a file."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from conf.compose import GROUPS
from conf.overrides import PATH_KEYS
from experiments.file_names import REFERENCES
from experiments.sweep.spec import key_of

LONGEST = 90
"""Characters of a label: a run's name has at most 121, and that of a run going first is longer."""
TAKEN = frozenset({REFERENCES, "lock"})


def labels(jobs: Sequence[Sequence[str]]) -> list[str]:
    """A label for each job of overrides, unlike all others and the same in every call.

    Groups are told by their value, the seed as ``s0``, other settings as ``key_value``; empty for
    the only job of a sweep that varies nothing.
    """
    mappings = [settings(job) for job in jobs]
    varied = varied_keys(mappings)
    plain = [_label(mapping, varied) for mapping in mappings]
    counts = Counter(name.lower() for name in plain)
    return [
        _marked(name, mapping) if counts[name.lower()] > 1 or name in TAKEN else name
        for name, mapping in zip(plain, mappings, strict=True)
    ]


def arm_labels(jobs: Sequence[Sequence[str]]) -> list[str]:
    """As :func:`labels`, without the seed: equal for jobs that differ in the seed alone."""
    arms = [[text for text in job if key_of(text) != "seed"] for job in jobs]
    distinct = list(dict.fromkeys(map(tuple, arms)))
    names = dict(zip(distinct, labels(distinct), strict=True))
    return [names[tuple(arm)] for arm in arms]


def settings(overrides: Sequence[str]) -> dict[str, str]:
    """Values by key as they are written; of a key that is given twice the last one."""
    return {key_of(text): text.partition("=")[2] for text in overrides}


def varied_keys(jobs: Sequence[Mapping[str, str]]) -> list[str]:
    """Keys with different values, or that some jobs alone have; the seed last."""
    keys = dict.fromkeys(key for job in jobs for key in job)
    varied = [key for key in keys if len({job.get(key) for job in jobs}) > 1]
    return sorted(varied, key=lambda key: key == "seed")


def _label(mapping: Mapping[str, str], varied: Sequence[str]) -> str:
    ends = Counter(key.rpartition(".")[2] for key in varied)
    parts = []
    for key in varied:
        if key not in mapping:
            continue
        end = key.rpartition(".")[2]
        value = PurePath(mapping[key]).name if key in PATH_KEYS else mapping[key]
        value = _plain(value).strip("_")
        if key == "seed":
            parts.append(f"s{value}")
        elif key in (*GROUPS, "experiment"):
            parts.append(value)
        else:
            parts.append(f"{end if ends[end] == 1 else key}_{value}")
    # Jobs of another product may lack all that varies here.
    name = _safe("-".join(parts)) or ("plain" if varied else "")
    return name if len(name) <= LONGEST else _marked(name, mapping)


def _marked(name: str, mapping: Mapping[str, str]) -> str:
    """The label with a digest of all the overrides, in whatever order they were given."""
    text = "\n".join(f"{key}={value}" for key, value in sorted(mapping.items()))
    return f"{name[:LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _safe(text: str) -> str:
    return _plain(text).strip("._-")


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)
