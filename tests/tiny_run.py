"""A tiny data set, its configuration, and requests to nodes; for tests of whole nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from client_app.runtime import Node, open_node
from conf.compose import compose
from conf.fingerprint import code_fingerprint
from conf.tree import Config, to_json
from models.rng import Role, derive_rng
from models.types import Tensors
from server_app.grid import LocalGrid
from strategies import wire
from strategies.messages import HELLO, Downlink, EvaluateRequest, Header
from strategies.wire import CONFIG

NUM_USERS, NUM_ITEMS = 20, 40


def config(folder: Path, *overrides: str) -> Config:
    """Twenty users with 6 to 15 of 40 items each, model widths of a few numbers."""
    path = folder / "ratings.csv"
    if not path.exists():
        rng = np.random.default_rng(0)
        lines = []
        for user in range(NUM_USERS):
            items = rng.choice(NUM_ITEMS, size=6 + user % 10, replace=False)
            lines += [f"{user},{item},5,{time}" for time, item in enumerate(items)]
        # Every item occurs, so that the catalogue has them all.
        lines += [f"{item % NUM_USERS},{item},5,{100 + item}" for item in range(NUM_ITEMS)]
        path.write_text("\n".join(lines) + "\n")
    return compose(
        [
            "dataset=file",
            f"dataset.path={path}",
            "protocol.num_candidates=10",
            f"output={folder / 'runs'}",
            f"cache={folder / 'cache'}",
            "name=tiny",
            "engine.block_users=6",
            *overrides,
        ]
    )


def header(cfg: Config, run_id: str = "run", incarnation: int = 0) -> Header:
    return Header(run_id, incarnation, to_json(cfg), code_fingerprint())


def node(cfg: Config, index: int = 0, count: int = 1, run_id: str = "run") -> Node:
    return open_node({"partition-id": index, "num-partitions": count}, header(cfg, run_id))


def shared(cfg: Config) -> Tensors:
    strategy = cfg.strategy_class(cfg.strategy, cfg.model)
    result: Tensors = strategy.init_shared(NUM_ITEMS, derive_rng(cfg.seed, Role.INIT_SHARED))
    return result


def downlink(
    head: Header,
    tensors: Tensors,
    users: list[int] | None,
    round_: int = 1,
    base_round: int | None = None,
    keep_rounds: tuple[int, ...] = (0,),
) -> Downlink:
    base = round_ - 1 if base_round is None else base_round
    cohort = None if users is None else np.array(users, dtype=np.int64)
    return Downlink(head, round_, base, keep_rounds, cohort, tensors)


def evaluation(
    head: Header, tensors: Tensors, state_round: int = 0, scorer: str = "model", full: bool = True
) -> EvaluateRequest:
    return EvaluateRequest(head, state_round, state_round, scorer, full, tensors)


def ask(
    grid: LocalGrid, kind: str, content: RecordDict, index: int = 0, *, greet: bool = True
) -> Message:
    """The reply of the grid's node ``index``, which with ``greet`` was said hello before."""
    node_id = list(grid.contexts)[index]
    if greet and kind != HELLO and CONFIG in content.config_records:
        config = content.config_records[CONFIG]
        checkpoint = next(iter(config.get("keep-rounds", ())), 0)
        fields = {**config, "may-start": True, "resume-round": checkpoint}
        hello = RecordDict({CONFIG: ConfigRecord(fields)})
        grid.send_and_receive([Message(hello, node_id, HELLO)])
    (reply,) = grid.send_and_receive([Message(content, node_id, kind)])
    return reply


def train(grid: LocalGrid, request: Downlink, index: int = 0) -> Message:
    return ask(grid, "train", wire.encode_downlink(request), index)


def scan(record: ArrayRecord) -> bytes:
    """All array bytes of a record, one after another."""
    return b"".join(array.data for array in record.values())
