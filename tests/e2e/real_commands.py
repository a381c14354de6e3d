"""What the end-to-end tests share: where commands are, and a small run's settings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

BINARIES = Path(sys.executable).parent
Command = Callable[..., "subprocess.CompletedProcess[str]"]

SMALL = [
    "dataset=file",
    "dataset.path=ratings.csv",
    "model.factors=4",
    "protocol.num_candidates=20",
    "federation.rounds=3",
    "federation.fraction=0.5",
    "evaluation.every=2",
    "cache=cache",
]
