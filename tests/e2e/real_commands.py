"""What the end-to-end tests share: where the commands are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

BINARIES = Path(sys.executable).parent
Command = Callable[..., "subprocess.CompletedProcess[str]"]
