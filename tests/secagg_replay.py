"""A run without protection over the very nodes that a protected run was summed over."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode

from client_app.app import app
from conf.tree import Config
from server_app.grid import LocalGrid
from server_app.results import RunResult
from server_app.run import run_server
from server_app.secagg_journal import Journal
from strategies import wire
from strategies.messages import ITEM_COUNTS as COUNTS_KIND
from strategies.secagg.protocol import ITEM_COUNTS, evaluation_sum, train_sum


def summed_as(message: Message) -> str | None:
    """The name of the sum that a request belongs to; None for other requests."""
    kind = message.metadata.message_type
    if kind == "train":
        return train_sum(wire.decode_downlink(message.content).round)
    if kind == "evaluate":
        request = wire.decode_evaluate(message.content)
        return evaluation_sum(request.scorer, request.state_round)
    return ITEM_COUNTS if kind == COUNTS_KIND else None


def replay(cfg: Config, protected: Path, shards: list[str]) -> RunResult:
    """Run ``cfg`` in process; a node that was not in a sum of ``protected`` is away for it.

    ``shards``: keys of the protected run's nodes in the order of their users.
    """
    journal = Journal(protected)

    def nodes(message: Message, context: Context) -> Message:
        key = shards[int(context.node_config["partition-id"])]
        what = summed_as(message)
        if what is not None and key not in (journal.survivors(what) or ()):
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "it is gone"), reply_to=message)
        return app(message, context)

    return run_server(LocalGrid(len(shards), nodes), cfg)  # type: ignore[arg-type]
