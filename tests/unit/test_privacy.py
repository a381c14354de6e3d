"""No message holds a number of a user's private state, whatever engine and strategy.

Searched for, at every byte of every message: each two neighbouring numbers of a private tensor
as they lie in memory, and each number alone as the float64 that metrics travel as. Both are 8
bytes long, so that one of some thousand patterns turns up by chance at one of some ten thousand
places with a probability of 1e7 / 2^64 < 1e-11. Left out is what others have as well: zeros (the
moments of a user not yet trained, unused units) and single numbers a user (Adam's step count, 1,
2 or 3, which is in every message somewhere).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_run
import torch
from flwr.app import Message, MetricRecord, RecordDict

from client_app.runtime import Node
from client_app.training import to_bytes
from models.types import Tensors
from server_app.grid import LocalGrid
from strategies import wire
from strategies.codec import to_arrays
from strategies.messages import HELLO, ITEM_COUNTS, Header, HelloRequest

LENGTH = 8
ROUNDS = ((1, [3]), (2, list(range(20))), (3, [3, 4]))


def patterns(tensors: Tensors) -> set[bytes]:
    """Patterns of tensors with a leading user dimension."""
    found = set()
    for tensor in tensors.values():
        rows = tensor.numpy().reshape(len(tensor), -1).astype("<f4")
        if rows.shape[1] < 2:
            continue
        found |= {np.float64(x).tobytes() for x in rows.flat if x}
        pairs = np.stack((rows[:, :-1], rows[:, 1:]), axis=-1).reshape(-1, 2)
        found |= {pair.tobytes() for pair in pairs if pair.all()}
    assert all(len(pattern) == LENGTH for pattern in found)
    return found


def windows(message: bytes) -> set[bytes]:
    return {message[i : i + LENGTH] for i in range(len(message) - LENGTH + 1)}


def private_tensors(node: Node) -> dict[str, Tensors]:
    """All users' private state by name and round: parameters and moments."""
    return {
        f"{name} of round {round_}": {name: tensor}
        for round_ in range(len(ROUNDS) + 1)
        for name, tensor in node.state.block(node.users, round_).items()
    }


def conversation(shared: Tensors, head: Header) -> tuple[list[RecordDict], list[RecordDict]]:
    """Requests and replies of a run's messages of every kind to one node."""
    counts_I = {"item_counts": torch.arange(tiny_run.NUM_ITEMS)}
    requests = [
        (HELLO, wire.encode_hello_request(HelloRequest(head))),
        (ITEM_COUNTS, wire.encode_request(head)),
        (
            "evaluate",
            wire.encode_evaluate(tiny_run.evaluation(head, counts_I, scorer="popularity")),
        ),
    ]
    for round_, users in ROUNDS:
        training = tiny_run.downlink(head, shared, users, round_)
        requests.append(("train", wire.encode_downlink(training)))
        ranking = tiny_run.evaluation(head, shared, round_)
        requests.append(("evaluate", wire.encode_evaluate(ranking)))
    grid = LocalGrid(1)
    replies = [tiny_run.ask(grid, kind, request, greet=False) for kind, request in requests]
    return [request for _, request in requests], [content(reply) for reply in replies]


def content(reply: Message) -> RecordDict:
    assert not reply.has_error(), reply.error.reason
    return reply.content


@pytest.mark.parametrize("engine", ["loop", "cohort"])
@pytest.mark.parametrize("strategy", ["fedrecgel", "fedncf", "fedavg", "fedmf"])
def test_private_state_is_in_no_message(tmp_path: Path, strategy: str, engine: str) -> None:
    cfg = tiny_run.config(tmp_path, "model.factors=4", f"strategy={strategy}", f"engine={engine}")
    requests, replies = conversation(tiny_run.shared(cfg), tiny_run.header(cfg))
    node = tiny_run.node(cfg)
    sent = [to_bytes(message) for message in (*requests, *replies)]
    seen = set[bytes]().union(*map(windows, sent))
    secrets = private_tensors(node)
    for name, tensor in secrets.items():
        assert seen.isdisjoint(patterns(tensor)), name
    for name in node.state.layout.names:
        assert not any(name.encode() in to_bytes(message) for message in replies), name
    # Training did fill the moments, so that there was something to search for.
    layout = node.state.layout
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        assert not shape or patterns(secrets[f"{name} of round 3"]), name


def test_the_search_finds_private_numbers_where_there_are_some(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path, "model.factors=4", "strategy=fedmf")
    conversation(tiny_run.shared(cfg), tiny_run.header(cfg))
    node = tiny_run.node(cfg)
    for name, tensor in node.state.block(node.users, 3).items():
        if tensor.dim() < 2:
            continue
        number = float(tensor[3].flatten()[0])
        for leak in (
            {"arrays": to_arrays({"innocent": tensor[3]})},
            {"metrics": MetricRecord({"innocent": number})},
        ):
            assert not windows(to_bytes(RecordDict(leak))).isdisjoint(patterns({name: tensor}))
