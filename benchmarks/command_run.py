"""Runs of the command line in a folder of their own, with their rounds and peak memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
COMMAND = "import sys; sys.argv[0] = 'fedrecgel'; from server_app.cli import main; main()"
SAMPLE_S = 0.2


@dataclass(frozen=True)
class Ran:
    """What a run left behind."""

    rounds: list[Mapping[str, object]]
    """Lines of ``metrics.jsonl``."""
    seconds: float
    """Wall time of the whole command."""
    peak_bytes: float
    """Most memory (proportional set size) of the command and the processes below it."""

    def medians(self, skip: int = 1) -> dict[str, float]:
        """Median seconds of a round by part, without the first ones and the evaluated last."""
        parts = [record["seconds"] for record in self.rounds[skip:-1]]
        names = parts[0].keys() if isinstance(parts[0], dict) else []
        return {name: median(part[name] for part in parts) for name in names}  # type: ignore[index]


class Folder:
    """A place for runs, with its own cache and home of a SuperLink."""

    def __init__(self, path: Path) -> None:
        self.path, self._log = path, path / "command.log"
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": str(path / "cache"),
            "FEDRECGEL_HOME": str(path / "home"),
        }

    def run(self, name: str, overrides: Sequence[str]) -> Ran:
        """Run to the end; the output is shown only if it fails."""
        command = ["run", *overrides, f"output={self.path / 'runs'}", "--name", name]
        process = self._start(command)
        started, peak = time.perf_counter(), 0.0
        while process.poll() is None:
            peak = max(peak, tree_bytes(process.pid))
            time.sleep(SAMPLE_S)
        if process.returncode:
            raise SystemExit(self._log.read_text("utf-8", errors="replace")[-3000:])
        seconds = time.perf_counter() - started
        lines = (self.path / "runs" / name / "metrics.jsonl").read_text("utf-8").splitlines()
        return Ran([json.loads(line) for line in lines], seconds, peak)

    def stop(self) -> None:
        """End the SuperLink that runs over Ray have left."""
        self._start(["stop"]).wait()

    def _start(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", COMMAND, *arguments]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                command, env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )


@contextmanager
def folder() -> Iterator[Folder]:
    """A temporary folder; its SuperLink is ended with it."""
    with tempfile.TemporaryDirectory(prefix="bench-") as path:
        made = Folder(Path(path))
        try:
            yield made
        finally:
            made.stop()


def tree_bytes(pid: int) -> float:
    """Proportional set size of a process and those below it, as far as they can be read."""
    total, waiting = 0.0, [pid]
    while waiting:
        one = Path("/proc") / str(waiting.pop())
        try:
            lines = (one / "smaps_rollup").read_text("utf-8").splitlines()
            total += 1024.0 * sum(int(ln.split()[1]) for ln in lines if ln.startswith("Pss:"))
            for task in (one / "task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
        except (OSError, ValueError):
            continue  # it has ended meanwhile
    return total
