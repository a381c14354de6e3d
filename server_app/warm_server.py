"""A process with torch and Flower imported, which forks a ClientApp process for each message.

Flower's SuperNode starts ``flwr-clientapp`` anew for every message, and most of an exchange is
then spent importing. A stand-in of that name (``warm_shim.py``) hands its arguments, environment,
folder and streams to this server, which forks; the child goes on as ``flwr-clientapp`` would.

Run as a script, by path: this application's packages must not be imported here, since a child
takes them from the bundle that Flower unpacks. It has one thread, as forking needs, and ends
with the SuperNode, its parent, whatever ends that.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
REQUEST_BYTES = 1 << 20
STREAMS = 3
NO_FORK = b"0\n"
"""In place of a process id."""


@dataclass(frozen=True)
class Child:
    """A forked ClientApp process and the connection of the stand-in that waits for it."""

    pid: int
    pidfd: int
    connection: socket.socket


def main(path: str, parent: int) -> None:
    """Serve at the UNIX socket ``path`` until the process ``parent`` ends."""
    end_with(parent)
    # Ctrl-C goes to a terminal's every process: the SuperNode's end is this one's.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Listening comes first, so that a stand-in waits for the imports instead of doing them too.
    listener = listen(path)
    preload()
    request = serve(listener)
    # Only a child gets here.
    become(request)
    work()


def work() -> None:
    """Be ``flwr-clientapp``, and end without taking torch apart: that takes half a second."""
    from flwr.supernode.cli import flwr_clientapp

    status: object = 0
    try:
        flwr_clientapp()
    except SystemExit as error:
        status = error.code
    except BaseException:  # noqa: BLE001  what the interpreter does with it, without its end
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the SuperNode has ended already")


def listen(path: str) -> socket.socket:
    """A socket that only this user can connect to."""
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    listener.bind(path)
    os.umask(before)
    listener.listen()
    return listener


def preload() -> None:
    """Import what every ClientApp process needs and no bundle brings."""
    import numpy  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torch  # noqa: F401
    from flwr.supernode.cli import flwr_clientapp  # noqa: F401


def serve(listener: socket.socket) -> dict[str, Any]:
    """Fork for every request. Returns in a child, with the request."""
    children: dict[int, Child] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    request = _accept(listener, children, selector)
                    if request is not None:
                        return request
                elif isinstance(key.data, Child):
                    _look_after(key.data, children, selector)


def _accept(
    listener: socket.socket, children: dict[int, Child], selector: selectors.BaseSelector
) -> dict[str, Any] | None:
    """Fork for a stand-in that still waits; None in the server, the request in the child."""
    connection, _ = listener.accept()
    request, streams = _receive(connection)
    if request is None or not is_single_threaded():
        with contextlib.suppress(OSError):
            connection.sendall(NO_FORK)
        _close([*streams, connection.detach()])
        return None
    pid = os.fork()
    if pid == 0:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        _close([*streams, listener.detach(), connection.detach(), *_descriptors(children)])
        return request
    _close(streams)
    child = children[pid] = Child(pid, os.pidfd_open(pid), connection)
    selector.register(child.pidfd, selectors.EVENT_READ, child)
    selector.register(connection, selectors.EVENT_READ, child)
    _tell(child, pid)
    return None


def _receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The request and three streams of a stand-in; no request where it has gone already."""
    streams: list[int] = []
    try:
        connection.sendall(b"+")
        data, streams, _, _ = socket.recv_fds(connection, REQUEST_BYTES, STREAMS)
        request = json.loads(data)
    except (OSError, ValueError):
        return None, streams
    return (request if len(streams) == STREAMS else None), streams


def is_single_threaded() -> bool:
    """Whether forking is safe: a lock that another thread holds would stay held in the child."""
    return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208  nothing imported for it


def _look_after(child: Child, children: dict[int, Child], selector: selectors.BaseSelector) -> None:
    """The child has ended, or the stand-in has: tell the one, end the other."""
    done, status = os.waitpid(child.pid, os.WNOHANG)
    if not done:
        if child.connection in selector.get_map():
            selector.unregister(child.connection)
            os.kill(child.pid, signal.SIGKILL)
        return
    for watched in (child.pidfd, child.connection):
        if watched in selector.get_map():
            selector.unregister(watched)
    _tell(child, os.waitstatus_to_exitcode(status))
    child.connection.close()
    os.close(child.pidfd)
    children.pop(child.pid, None)


def _tell(child: Child, number: int) -> None:
    with contextlib.suppress(OSError):  # where nobody waits, the connection says so by itself
        child.connection.sendall(b"%d\n" % number)


def _descriptors(children: dict[int, Child]) -> list[int]:
    return [fd for child in children.values() for fd in (child.pidfd, child.connection.fileno())]


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def become(request: dict[str, Any]) -> None:
    """Take the stand-in's place: folder, arguments, environment, signals, random numbers."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = request["arguments"]
    # The server itself was started without: it must not find this application's packages.
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    random.seed()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
