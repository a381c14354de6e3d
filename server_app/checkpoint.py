"""Checkpoints: atomic, self-checking, the newest two kept.

A checkpoint is a folder ``round-000010`` with ``tensors.safetensors`` (shared parameters
and the strategy's server state), ``best.safetensors`` (shared parameters of the selected
round) and ``state.json`` (everything else, with the hashes of the three). The tensors files
hold nothing but tensors, so equal runs write equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from logging import INFO, WARNING
from pathlib import Path

from flwr.common.logger import log
from safetensors import SafetensorError
from safetensors.torch import load, save

from models.types import Tensors
from server_app.errors import CheckpointError
from server_app.files import sync_folder, write_synced
from server_app.selection import Selection

TENSORS, BEST, STATE = "tensors.safetensors", "best.safetensors", "state.json"
SHARED, SERVER = "shared/", "server/"
KEPT = 2


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

    @property
    def state_rounds(self) -> set[int]:
        """Rounds whose private state a resume from here may ask the nodes for."""
        selected = self.selection.round
        return {self.round} | (set() if selected is None else {selected})


class CheckpointStore:
    """The checkpoints of one run folder."""

    def __init__(self, run_folder: Path) -> None:
        self.folder = run_folder / "checkpoint"
        self._state_rounds: dict[int, set[int]] = {}

    @property
    def state_rounds(self) -> set[int]:
        """Rounds whose private state a resume from any kept checkpoint may ask for."""
        return set().union(*self._state_rounds.values())

    @property
    def newest(self) -> int:
        """Round of the newest checkpoint saved or loaded."""
        return max(self._state_rounds)

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then drop all but the newest two; returns its folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        final = self.folder / _name(checkpoint.round)
        temporary = self.folder / f".{final.name}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for name, data in _encode(checkpoint).items():
            write_synced(temporary / name, data)
        sync_folder(temporary)
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        sync_folder(self.folder)
        self._state_rounds[checkpoint.round] = checkpoint.state_rounds
        self._prune()
        return final

    def load(self) -> Checkpoint | None:
        """The newest checkpoint that is intact; None when there is none at all.

        Damaged newer ones are named in the log and removed.

        Raises:
            CheckpointError: when there are checkpoints and every one is damaged.

        """
        folders = sorted(self.folder.glob("round-*"), reverse=True)
        damaged: list[str] = []
        for folder in folders:
            try:
                checkpoint = read_checkpoint(folder)
            except CheckpointError as error:
                damaged.append(str(error))
                log(WARNING, "Falling back to the checkpoint before: %s", error)
                continue
            self._adopt(folders, checkpoint)
            return checkpoint
        if damaged:
            raise CheckpointError("no checkpoint is intact: " + "; ".join(damaged))
        return None

    def _adopt(self, folders: list[Path], checkpoint: Checkpoint) -> None:
        """Continue from ``checkpoint``: remove what is newer, remember what is kept."""
        self._state_rounds = {checkpoint.round: checkpoint.state_rounds}
        for folder in folders:
            if folder.name > _name(checkpoint.round):
                shutil.rmtree(folder)
            elif folder.name < _name(checkpoint.round):
                try:
                    older = read_checkpoint(folder)
                except CheckpointError:
                    continue
                self._state_rounds[older.round] = older.state_rounds
        log(INFO, "Continuing from the checkpoint of round %d", checkpoint.round)

    def _prune(self) -> None:
        for folder in sorted(self.folder.glob("round-*"), reverse=True)[KEPT:]:
            shutil.rmtree(folder)
        kept = {folder.name for folder in self.folder.glob("round-*")}
        self._state_rounds = {r: s for r, s in self._state_rounds.items() if _name(r) in kept}


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read one checkpoint folder.

    Raises:
        CheckpointError: naming the file that is missing or damaged.

    """
    try:
        state = json.loads((folder / STATE).read_bytes())
        if state["digest"] != _state_digest(state):
            raise CheckpointError(f"{folder / STATE} is damaged: its hash does not match")
        tensors = _split(_read_tensors(folder / TENSORS, state["sha256"][TENSORS]))
        best = _read_tensors(folder / BEST, state["sha256"][BEST])
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
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"{folder} is damaged: {type(error).__name__}: {error}") from error


def load_checkpoint(run_folder: Path) -> Checkpoint:
    """The newest intact checkpoint of a run, read only.

    Raises:
        CheckpointError: when there is none.

    """
    reasons = []
    for folder in sorted((run_folder / "checkpoint").glob("round-*"), reverse=True):
        try:
            return read_checkpoint(folder)
        except CheckpointError as error:
            reasons.append(str(error))
    raise CheckpointError("; ".join([f"no usable checkpoint in {run_folder}", *reasons]))


def _name(server_round: int) -> str:
    return f"round-{server_round:09d}"


def _encode(checkpoint: Checkpoint) -> dict[str, bytes]:
    prefixed = {SHARED + n: t for n, t in checkpoint.shared.items()}
    prefixed |= {SERVER + n: t for n, t in checkpoint.server_state.items()}
    files = {TENSORS: _pack(prefixed), BEST: _pack(checkpoint.best)}
    state: dict[str, object] = {
        "round": checkpoint.round,
        "run_id": checkpoint.run_id,
        "incarnation": checkpoint.incarnation,
        "config_hash": checkpoint.config_hash,
        "shards": {key: dict(shard) for key, shard in checkpoint.shards.items()},
        "selection": checkpoint.selection.to_json(),
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    state["digest"] = _state_digest(state)
    return {**files, STATE: json.dumps(state, indent=2).encode()}


def _pack(tensors: Tensors) -> bytes:
    # safetensors refuses views and shared memory; contiguous copies are neither.
    return save({n: t.detach().contiguous().clone() for n, t in sorted(tensors.items())})


def _read_tensors(path: Path, sha256: str) -> Tensors:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise CheckpointError(f"{path} is damaged: its hash does not match")
    return load(data)


def _split(tensors: Tensors) -> dict[str, Tensors]:
    return {
        prefix: {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        for prefix in (SHARED, SERVER)
    }


def _state_digest(state: Mapping[str, object]) -> str:
    content = {key: value for key, value in state.items() if key != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def fingerprint(data: bytes) -> str:
    """Short hash for comparing assignments."""
    return hashlib.sha256(data).hexdigest()[:16]
