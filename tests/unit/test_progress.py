"""The progress line: on wide, narrow and dumb terminals, in a pipe, after a resume."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from server_app.progress import RoundProgress


def terminal(out: io.StringIO, width: int, term: str = "xterm") -> Console:
    return Console(
        file=out, width=width, force_terminal=True, color_system=None, _environ={"TERM": term}
    )


def record(number: int, evaluation: dict[str, float] | None) -> dict[str, Any]:
    return {
        "round": number,
        "num_users": 50,
        "train": {"loss": 0.5},
        "evaluation": evaluation,
        "bytes_up": 1_000_000,
        "bytes_down": 500_000,
        "seconds": {"train": 0.5},
    }


def test_progress_without_a_terminal_is_a_line_an_evaluation() -> None:
    out = io.StringIO()
    with RoundProgress("x", 4, Console(file=out, width=200)) as progress:
        progress.update(record(1, None))
        progress.update(record(2, {"validation/sampled/hr@10": 0.25}))
        progress.update(record(3, None))
    # 50 users in half a second; two rounds of 1.5 MB.
    line = "x round 2/4: validation HR@10 25.0% · loss 0.5000 · 3.0 MB · 100 users/s\n"
    assert out.getvalue() == line


def test_progress_on_a_terminal_is_a_bar() -> None:
    out = io.StringIO()
    with RoundProgress("x", 4, terminal(out, 200)) as progress:
        progress.update(record(2, {"test/sampled/hr@10": 0.25}))
    assert "2/4" in out.getvalue()
    assert "test HR@10 25.0%" in out.getvalue()


def test_a_narrow_terminal_keeps_bar_round_and_time_left() -> None:
    out = io.StringIO()
    with RoundProgress("x", 100, terminal(out, 80)) as progress:
        progress.update(record(9, {"validation/sampled/hr@10": 0.25}))
        progress.update(record(10, {"validation/sampled/hr@10": 0.25}))
    last = out.getvalue().split("\r")[-1].split("\x1b[2K")[-1].removesuffix("\n\x1b[?25h")
    assert last.startswith("━")
    assert " 10/100 " in last and last.count(":") == 4  # elapsed and left, h:mm:ss each
    assert last.endswith("val HR@10 25.0% · loss 0.5000 · 3.0 MB")  # no room for users/s
    assert len(last) <= 80


def test_a_dumb_terminal_gets_lines_as_a_pipe_does() -> None:
    out = io.StringIO()
    with RoundProgress("x", 4, terminal(out, 80, term="dumb")) as progress:
        progress.update(record(1, None))
        progress.update(record(2, {"test/sampled/hr@10": 0.25}))
    line = "x round 2/4: test HR@10 25.0% · loss 0.5000 · 3.0 MB · 100 users/s\n"
    assert out.getvalue() == line


def test_a_resumed_run_counts_on_from_its_earlier_rounds() -> None:
    """Rounds 1 and 2 stand in the file; 2, after the checkpoint, is trained again: 3 MB."""
    out = io.StringIO()
    earlier = [record(1, {"test/sampled/hr@10": 0.2}), record(2, None)]
    with RoundProgress("x", 4, Console(file=out, width=200), earlier) as progress:
        progress.update(record(2, {"test/sampled/hr@10": 0.25}))
    assert "· 3.0 MB ·" in out.getvalue()
