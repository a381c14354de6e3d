"""Stand-in for ``flwr-clientapp``: asks the warm server for a process, else runs the real one.

Started for every message, so it imports next to nothing. Arguments: socket of the server, path
of the real program, then the program's own arguments.
"""

import os
import socket
import sys

ANSWER_S = 60.0
"""How long the server may still be importing."""


def main(path: str, program: str, arguments: list) -> int:  # type: ignore[type-arg]
    """Exit status of the process that did the work."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(ANSWER_S)
    try:
        connection.connect(path)
        if connection.recv(1) != b"+":
            raise OSError("it has ended")
        signals = _Signals()
        socket.send_fds(connection, [_request(program, arguments)], [0, 1, 2])
        pid = int(_line(connection))
        if pid == 0:
            raise OSError("the warm server has other threads")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"no warm start ({error}); starting {program}\n")
        sys.stderr.flush()
        os.execv(program, [program, *arguments])
    connection.settimeout(None)
    signals.go_to(pid)
    try:
        status = int(_line(connection))
    except (OSError, ValueError):
        return 1
    return status if status >= 0 else 128 - status


def _request(program: str, arguments: list) -> bytes:  # type: ignore[type-arg]
    import json

    request = {
        "arguments": [program, *arguments],
        "environment": dict(os.environ),
        "cwd": os.getcwd(),  # noqa: PTH109  pathlib takes longer to import than all this
    }
    return json.dumps(request).encode()


class _Signals:
    """Passes signals on to a process that is named later; those before then are kept for it."""

    def __init__(self) -> None:
        import signal

        self._pid, self._early = 0, list[int]()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._pass_on)

    def go_to(self, pid: int) -> None:
        """Name the process."""
        self._pid = pid
        for number in self._early:
            self._pass_on(number, None)

    def _pass_on(self, number: int, frame: object) -> None:
        if not self._pid:
            self._early.append(number)
            return
        try:  # contextlib is not worth its import
            os.kill(self._pid, number)
        except ProcessLookupError:
            return


def _line(connection: socket.socket) -> bytes:
    """What the server says next; ValueError in the caller where it says nothing."""
    found = b""
    while not found.endswith(b"\n"):
        part = connection.recv(64)
        if not part:
            break
        found += part
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
