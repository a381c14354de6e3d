"""What the server saw of each node in chosen rounds, kept for ``fedrecgel audit``.

A round is one file, ``uplinks/round-000000001.safetensors``, with the shared parameters that were
sent and each node's upload. It holds nothing that the server does not see: what users' items are
has to come from elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from models.types import IntArray, Tensors
from server_app.errors import ServerError
from server_app.files import replace_file
from strategies.base import RecStrategy
from strategies.messages import Uplink

MAX_BYTES = 2 << 30
"""Of all recorded rounds together."""
FOLDER = "uplinks"


@dataclass(frozen=True)
class SeenUpload:
    """One node's upload as the server had it: a sum over users, or each user's own."""

    shard_key: str
    users_U: IntArray
    """Who was asked for; the server knows, as it chose them."""
    num_users: int
    """Whose updates the sum is of, as the node says."""
    weight: float
    tensors: Tensors
    row_weights: Tensors
    individual: Tensors
    """Each user's upload (U, …) in the order of ``individual_U``; empty for sums."""
    individual_U: IntArray


@dataclass(frozen=True)
class SeenRound:
    """A recorded round: parameters sent, and the uploads by ascending shard key."""

    round: int
    shared: Tensors
    uploads: Sequence[SeenUpload]


class UplinkRecord:
    """Keeps the uploads of the rounds it was made for."""

    def __init__(self, run_folder: Path, rounds: Sequence[int]) -> None:
        self._folder, self._rounds = run_folder / FOLDER, frozenset(rounds)

    def check(self, strategy: RecStrategy, shared: Tensors, nodes: int, users: int) -> None:
        """Refuse, before anything is trained, what could grow beyond ``MAX_BYTES``.

        Raises:
            ServerError: with the size and what to set.

        """
        size, single = _bytes(shared), strategy.individual_template(shared)
        sums = min(nodes, users) * _bytes(strategy.summed_template(shared))
        each = users * _bytes(single) if strategy.needs_individual_updates else 0
        total = len(self._rounds) * (size + sums + each)
        if total > MAX_BYTES:
            raise ServerError(
                f"evaluation.record_uplinks could keep {total / 2**30:.1f} GiB, more than "
                f"{MAX_BYTES / 2**30:g}: record fewer rounds, lower federation.fraction or "
                "federation.num_nodes"
            )

    def keep(
        self,
        server_round: int,
        shared: Tensors,
        uplinks: Sequence[Uplink],
        asked: Mapping[str, IntArray],
    ) -> None:
        """Write the round's file if it is one of those asked for."""
        if server_round not in self._rounds:
            return
        tensors = {f"shared/{name}": tensor for name, tensor in shared.items()}
        for uplink in uplinks:
            own = _encoded(uplink, asked[uplink.shard_key])
            tensors |= {f"{uplink.shard_key}/{name}": tensor for name, tensor in own.items()}
        self._folder.mkdir(exist_ok=True)
        owned = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
        replace_file(self._folder / _name(server_round), save(owned))


def recorded_rounds(run_folder: Path) -> list[int]:
    """Rounds with a file, ascending."""
    files = sorted((run_folder / FOLDER).glob("round-*.safetensors"))
    return [int(path.stem.removeprefix("round-")) for path in files]


def load_round(run_folder: Path, server_round: int) -> SeenRound:
    """A recorded round.

    Raises:
        ServerError: when its file is not there or damaged.

    """
    path = run_folder / FOLDER / _name(server_round)
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ServerError(f"{path}: {error}") from None
    # A shard key has no "/": it names a file.
    keys = sorted({name.split("/", 1)[0] for name in tensors} - {"shared"})
    seen = [_decoded(key, _below(tensors, key)) for key in keys]
    return SeenRound(server_round, _below(tensors, "shared"), seen)


def _encoded(uplink: Uplink, users_U: IntArray) -> Tensors:
    update, single = uplink.update, uplink.individual
    numbers = torch.tensor([uplink.num_users, update.weight], dtype=torch.float64)
    found = {"users": torch.from_numpy(users_U.astype(np.int64)), "numbers": numbers}
    found |= {f"update/{n}": t.to_dense() for n, t in update.tensors.items()}
    found |= {f"rows/{n}": t for n, t in (update.row_weights or {}).items()}
    if single is not None:
        found["individual-users"] = torch.from_numpy(single.users_U)
        found |= {f"individual/{n}": t for n, t in single.tensors.items()}
    return found


def _decoded(key: str, tensors: Tensors) -> SeenUpload:
    num_users, weight = tensors["numbers"].tolist()
    nobody = torch.zeros(0, dtype=torch.int64)
    return SeenUpload(
        shard_key=key,
        users_U=tensors["users"].numpy(),
        num_users=int(num_users),
        weight=weight,
        tensors=_below(tensors, "update"),
        row_weights=_below(tensors, "rows"),
        individual=_below(tensors, "individual"),
        individual_U=tensors.get("individual-users", nobody).numpy(),
    )


def _below(tensors: Tensors, head: str) -> Tensors:
    start = f"{head}/"
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


def _bytes(tensors: Tensors) -> int:
    return sum(math.prod(t.shape) * t.element_size() for t in tensors.values())


def _name(server_round: int) -> str:
    return f"round-{server_round:09d}.safetensors"
