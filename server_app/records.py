"""Files with a record a line, each of a round: reading whole lines, and dropping later rounds."""

from __future__ import annotations

import json
from pathlib import Path

from server_app.files import replace_file


def read_records(path: Path) -> list[dict[str, object]]:
    """The complete lines of a file; a line cut off by a crash is left out; none without a file."""
    text = path.read_text("utf-8") if path.exists() else ""
    whole, _, _ = text.rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def truncate_records(path: Path, last_round: int) -> None:
    """Drop the lines of rounds after ``last_round``, which a resumed run makes again."""
    kept = [r for r in read_records(path) if int(str(r["round"])) <= last_round]
    lines = [json.dumps(record, allow_nan=False) + "\n" for record in kept]
    replace_file(path, "".join(lines).encode())
