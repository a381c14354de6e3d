"""The ``fedrecgel`` command.

Exit status: 0 success, 1 a run or command failed, 2 the configuration or the command line
is wrong, 130 stopped by Ctrl-C.

Everything else is imported inside, so that Ctrl-C is answered from the first instant.
"""

from __future__ import annotations

import io
import sys
from typing import TextIO

INTERRUPTED = 130


def main() -> None:
    """Run the command line of this process and exit with its status."""
    for stream in (sys.stdout, sys.stderr):
        never_refuse(stream)
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Run one command line; errors become one line on standard error and an exit status."""
    try:
        from server_app.cli_app import run_app

        return run_app(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("fedrecgel: stopped\n")
        return INTERRUPTED


def never_refuse(stream: TextIO) -> None:
    """Write ``?`` for characters that the encoding of the terminal lacks."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="replace")
