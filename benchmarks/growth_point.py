"""One point of a growth curve, measured in a process of its own; prints JSON.

python benchmarks/growth_point.py '["strategy=fedmf"]' '{"users": 100, "items": 1682}'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks import ways
from benchmarks.made_up import Shape, made_up
from benchmarks.timing import Way, alternate

REPEATS = 3


def measure(overrides: Sequence[str], shape: Shape) -> dict[str, float]:
    """Seconds of a round, and memory (bytes): before the cohort was made, and at most."""
    torch.set_num_threads(1)
    before = _memory("VmRSS")
    work = made_up(overrides, shape)
    calls = {
        "seconds": Way(partial(ways.drawn_round, work)),
        "server_seconds": Way(partial(ways.stepped, work, ways.whole_round(work))),
    }
    seconds = alternate(calls, REPEATS)
    samples = len(work.dataset.train_items) * (1 + work.strategy.config.num_negatives)
    memory = {"before_bytes": before, "peak_bytes": _memory("VmHWM")}
    return {**seconds, **memory, "samples_a_user": samples / shape.users}


def _memory(name: str) -> float:
    """A figure of /proc, in bytes. The usage of ``getrusage`` may be the parent's own peak."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith(name + ":")]
    return 1024.0 * int(line.split()[1])


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]), Shape(**json.loads(sys.argv[2])))))
