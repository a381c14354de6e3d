"""Checkpoints: atomic, self-checking, the newest two kept.

A checkpoint is a folder ``round-000000010`` with ``tensors.safetensors`` (shared parameters
and the strategy's server state), ``best.safetensors`` (shared parameters of the selected
round) and ``state.json`` (everything else, with the hashes of the others); with
``evaluation.user_ranks`` also ``ranks.npz``, each user's ranks at the selected round, and with
``evaluation.item_drift`` ``observed.safetensors``, the item tables observed last; with
``strategy.async`` ``versions.safetensors``, older shared parameters still in use. The tensors files
hold nothing but tensors, so equal runs write equal bytes.
"""

from __future__ import annotations

import shutil
from logging import INFO, WARNING
from pathlib import Path

from flwr.common.logger import log

from server_app.errors import CheckpointError
from server_app.files import sync_folder, write_synced
from server_app.snapshot import Checkpoint, encode, read_checkpoint

__all__ = ["Checkpoint", "CheckpointStore", "load_checkpoint", "read_checkpoint"]

KEPT = 2


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
    def rounds(self) -> list[int]:
        """Rounds of the kept checkpoints, ascending."""
        return sorted(self._state_rounds)

    @property
    def selected(self) -> list[int]:
        """Rounds that these have selected, beside their own; ascending."""
        return sorted(self.state_rounds - set(self.rounds))

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
        for name, data in encode(checkpoint).items():
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
