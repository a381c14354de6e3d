"""What went wrong at nodes: nodes that are away, and clients that fail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from server_app.errors import ClientsFailedError


@dataclass(frozen=True)
class NodeFailure:
    """A message to a node without a usable reply."""

    shard_key: str
    node_id: int
    reason: str
    by_client: bool
    """The client raised an error or its reply was rejected. Otherwise the node went away or
    was silent, which is what ``federation.min_share`` tolerates."""

    def __str__(self) -> str:
        return f"shard {self.shard_key!r} (node {self.node_id}): {self.reason}"


@dataclass
class FailureLog:
    """Failures since the last round's record."""

    count: int = 0
    """Messages without a usable reply, of whatever kind."""
    client_errors: list[str] = field(default_factory=list)
    """One line for each failing client whose users an exchange then went without."""

    def add(self, failures: Sequence[NodeFailure], missing: frozenset[str]) -> None:
        """Add an exchange's failures, which ended without the shards in ``missing``."""
        self.count += len(failures)
        self.client_errors += [
            str(failure).splitlines()[0]
            for failure in failures
            if failure.by_client and failure.shard_key in missing
        ]

    def take(self) -> FailureLog:
        """What was collected so far, and start anew."""
        taken = FailureLog(self.count, self.client_errors)
        self.count, self.client_errors = 0, []
        return taken


def client_errors(records: Iterable[Mapping[str, object]]) -> list[str]:
    """The client errors of a run's records, those before a resume included."""
    lists = (record.get("client_errors") for record in records)
    return [str(error) for errors in lists if isinstance(errors, list) for error in errors]


def refuse_client_errors(rounds: int, errors: Sequence[str]) -> None:
    """Raise ClientsFailedError unless ``errors`` is empty."""
    if errors:
        times = "once" if len(errors) == 1 else f"{len(errors)} times"
        raise ClientsFailedError(
            f"all {rounds} rounds were trained, but clients failed {times}; first: {errors[0]}"
        )
