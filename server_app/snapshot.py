"""One checkpoint as an object and as the bytes of its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save

from models.types import Tensors, UserRanks
from server_app import user_ranks
from server_app.errors import CheckpointError, StorageError
from server_app.selection import Selection

RANKS, OBSERVED, VERSIONS = "ranks.npz", "observed.safetensors", "versions.safetensors"
TENSORS, BEST, STATE = "tensors.safetensors", "best.safetensors", "state.json"
SHARED, SERVER = "shared/", "server/"


@dataclass(frozen=True)
class Checkpoint:
    """The whole state of a run between two rounds."""

    round: int
    run_id: str
    incarnation: int
    config_hash: str
    shards: Mapping[str, Mapping[str, str]]
    """By shard key: hash of the user indices (``users``) and of the data (``data``)."""
    selection: Selection
    shared: Tensors
    server_state: Tensors
    best: Tensors
    """Shared parameters of the selected round; empty before the first evaluation."""
    trained: Mapping[str, int] = field(default_factory=dict)
    """By shard key: the last round whose answer was used."""
    evaluation_due: bool = False
    """The round is to be ranked with the next round's training."""
    best_ranks: UserRanks | None = None
    """Each user's ranks at the selected round, where they were asked for."""

    versions: Mapping[int, Tensors] = field(default_factory=dict)
    """Older shared parameters that devices still work on, by the round they are of."""

    observed: Tensors = field(default_factory=dict)
    """Item tables at the last observation of their drift, where it was asked for."""

    @property
    def observed_round(self) -> int:
        """The last round whose evaluation is behind this checkpoint, if it was evaluated."""
        return self.round - 1 if self.evaluation_due else self.round

    @property
    def state_rounds(self) -> set[int]:
        """Rounds whose private state a resume from here may ask the nodes for."""
        selected = self.selection.round
        return {self.round} | (set() if selected is None else {selected})


def encode(checkpoint: Checkpoint) -> dict[str, bytes]:
    """The content of a checkpoint's files by name; equal states give equal bytes."""
    prefixed = {SHARED + n: t for n, t in checkpoint.shared.items()}
    prefixed |= {SERVER + n: t for n, t in checkpoint.server_state.items()}
    files = {TENSORS: _pack(prefixed), BEST: _pack(checkpoint.best)}
    if checkpoint.best_ranks is not None:
        files[RANKS] = user_ranks.to_bytes(checkpoint.best_ranks)
    if checkpoint.versions:
        files[VERSIONS] = _pack(_flat(checkpoint.versions))
    if checkpoint.observed:
        files[OBSERVED] = _pack(checkpoint.observed)
    state: dict[str, object] = {
        "round": checkpoint.round,
        "run_id": checkpoint.run_id,
        "incarnation": checkpoint.incarnation,
        "config_hash": checkpoint.config_hash,
        "shards": {key: dict(shard) for key, shard in checkpoint.shards.items()},
        "selection": checkpoint.selection.to_json(),
        "trained": dict(checkpoint.trained),
        "evaluation_due": checkpoint.evaluation_due,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    state["digest"] = _state_digest(state)
    return {**files, STATE: json.dumps(state, indent=2, allow_nan=False).encode()}


def _pack(tensors: Tensors) -> bytes:
    # safetensors refuses views and shared memory; contiguous copies are neither.
    return save({n: t.detach().contiguous().clone() for n, t in sorted(tensors.items())})


def _read(path: Path, sha256: Mapping[str, str]) -> bytes:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256[path.name]:
        raise CheckpointError(f"{path} is damaged: its hash does not match")
    return data


def _read_ranks(path: Path, sha256: Mapping[str, str]) -> UserRanks | None:
    if path.name not in sha256:
        return None
    return user_ranks.from_bytes(_read(path, sha256), path)


def _flat(versions: Mapping[int, Tensors]) -> Tensors:
    return {f"{v}/{name}": t for v, tensors in versions.items() for name, t in tensors.items()}


def _by_version(tensors: Tensors) -> dict[int, Tensors]:
    found: dict[int, Tensors] = {}
    for key, tensor in tensors.items():
        version, _, name = key.partition("/")
        found.setdefault(int(version), {})[name] = tensor
    return found


def _split(tensors: Tensors) -> dict[str, Tensors]:
    return {
        prefix: {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        for prefix in (SHARED, SERVER)
    }


def _state_digest(state: Mapping[str, object]) -> str:
    content = {key: value for key, value in state.items() if key != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read one checkpoint folder.

    Raises:
        CheckpointError: naming the file that is missing or damaged.

    """
    try:
        state = json.loads((folder / STATE).read_bytes())
        if state["digest"] != _state_digest(state):
            raise CheckpointError(f"{folder / STATE} is damaged: its hash does not match")
        hashes = state["sha256"]
        tensors = _split(load(_read(folder / TENSORS, hashes)))
        best = load(_read(folder / BEST, hashes))
        return Checkpoint(
            round=state["round"],
            run_id=state["run_id"],
            incarnation=state["incarnation"],
            config_hash=state["config_hash"],
            shards=state["shards"],
            selection=Selection(**state["selection"]),
            shared=tensors[SHARED],
            server_state=tensors[SERVER],
            best=best,
            trained=state["trained"],
            evaluation_due=state["evaluation_due"],
            best_ranks=_read_ranks(folder / RANKS, hashes),
            versions=_by_version(load(_read(folder / VERSIONS, hashes)))
            if VERSIONS in hashes
            else {},
            observed=load(_read(folder / OBSERVED, hashes)) if OBSERVED in hashes else {},
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, StorageError) as error:
        raise CheckpointError(f"{folder} is damaged: {type(error).__name__}: {error}") from error


def fingerprint(data: bytes) -> str:
    """Short hash for comparing assignments."""
    return hashlib.sha256(data).hexdigest()[:16]
