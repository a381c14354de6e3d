"""Results of a benchmark as JSON and Markdown, with the machine, versions and date.

    report.write("engines", {"fedrecgel": {"dense": 0.42}}, report.table(header, rows))

writes ``benchmarks/results/engines.json`` and ``engines.md``. Nothing in them names the host
or a path of it.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"

LOAD_AT_START = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
"""Mean number of processes that wanted a core in the minute before this module was imported."""


def write(name: str, figures: Mapping[str, Any], markdown: str, folder: Path = RESULTS) -> None:
    """Write ``<name>.json`` and ``<name>.md`` into ``folder``, replacing an older run's.

    ``figures`` is what JSON can hold; seconds, bytes and ratios under names that say which.

    Raises:
        ValueError: for a figure that is infinite or not a number.
        TypeError: for a figure that JSON cannot hold.

    """
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "load_average_at_start": LOAD_AT_START,
    }
    text = json.dumps({**about, "figures": figures}, indent=2, allow_nan=False)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text(f"{markdown.strip()}\n\n{_caption()}\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """Processor model, usable cores and memory in GiB."""
    return {"cpu": _cpu_model(), "cores": cores(), "memory_gib": round(_memory_bytes() / 2**30, 1)}


def versions() -> dict[str, str]:
    """Of Python, the libraries that do the work, and this package's commit."""
    libraries = {name: version(name) for name in ("torch", "numpy", "flwr")}
    return {"python": platform.python_version(), **libraries, "commit": _commit()}


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column to the left, the others to the right.

    Raises:
        ValueError: for a row that has not the header's number of cells.

    """
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"{len(header)} columns, but a row of {len(row)}: {row}")
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))


def _caption() -> str:
    facts, of = machine(), versions()
    load = "unknown" if LOAD_AT_START is None else f"{LOAD_AT_START:.2f}"
    return (
        f"*{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB; Python "
        f"{of['python']}, torch {of['torch']}, numpy {of['numpy']}, flwr {of['flwr']}; commit "
        f"{of['commit']}; {datetime.now(UTC):%Y-%m-%d}; load average at the start {load}.*"
    )


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _commit() -> str:
    """Short hash, with "+changes" where tracked files differ from it; "unknown" outside git."""
    if not (commit := _git("rev-parse", "--short", "HEAD")):
        return "unknown"
    return commit + ("+changes" if _git("status", "--porcelain", "-uno") else "")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(RESULTS.parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
