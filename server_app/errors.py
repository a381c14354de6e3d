"""What can go wrong on the server; every message is meant for the person at the terminal."""

from __future__ import annotations


class ServerError(RuntimeError):
    """Base of the server's own errors."""


class NodeError(ServerError):
    """Nodes are missing, run other code or other data, or their shards do not fit together."""


class RoundError(ServerError):
    """A round could not be completed under the configured policy."""


class ClientsFailedError(RoundError):
    """All rounds were trained and the result is written, but clients failed on the way."""


class CheckpointError(ServerError):
    """No usable checkpoint where one is needed."""


class RunFolderError(ServerError):
    """The run's folder exists already, is in use, or belongs to another configuration."""


class SuperLinkError(ServerError):
    """The local SuperLink cannot be started, reached or stopped."""


class RunStoppedError(ServerError):
    """The run was stopped from elsewhere before it was complete."""


class StorageError(ServerError):
    """A file of the run cannot be written or read."""
