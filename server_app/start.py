"""How a run starts, fresh or from its last checkpoint, and what its ``state.json`` says."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from logging import WARNING

from flwr.common.logger import log

from conf.tree import Config
from server_app.callbacks import Callback, read_metrics, truncate_metrics
from server_app.checkpoint import Checkpoint, CheckpointStore
from server_app.errors import CheckpointError, ClientsFailedError, RunFolderError, ServerError
from server_app.item_drift import DRIFT
from server_app.records import truncate_records
from server_app.run_folder import RunFolder, RunState, fixed_settings, read_state


@dataclass(frozen=True)
class Start:
    """A start of the run: fresh, or from a checkpoint."""

    state: RunState
    checkpoints: CheckpointStore
    resume_from: Checkpoint | None


@contextmanager
def recorded(folder: RunFolder, cfg: Config, followers: Sequence[Callback]) -> Iterator[Start]:
    """Keep ``state.json`` true: running, then completed or failed with the error's text.

    A run that was stopped (Ctrl-C) has not failed: without a process, ``running`` reads as
    ``interrupted``.
    """
    start = _begin(folder, cfg)
    state = start.state
    folder.write_state(state)
    try:
        yield start
    except BaseException as error:
        if isinstance(error, Exception):
            _record_failure(folder, state, error)
        for callback in followers:
            callback.on_failure(error)
        raise
    folder.write_state(RunState("completed", state.run_id, state.incarnation))


def _record_failure(folder: RunFolder, state: RunState, error: Exception) -> None:
    # Our own errors say what is wrong by themselves; of others the type is half the message.
    text = str(error) if isinstance(error, ServerError) else f"{type(error).__name__}: {error}"
    clients_failed = isinstance(error, ClientsFailedError)
    try:
        folder.write_state(
            RunState("failed", state.run_id, state.incarnation, text, clients_failed)
        )
    except OSError as second:
        # The disk that failed the run may refuse this too; the first error is the one to see.
        log(WARNING, "The failure is not recorded: %s", second)


def _begin(folder: RunFolder, cfg: Config) -> Start:
    checkpoints = CheckpointStore(folder.path)
    checkpoint = checkpoints.load() if cfg.resume else None
    truncate_metrics(folder.path, 0 if checkpoint is None else checkpoint.round)
    if (drift := folder.path / DRIFT).exists():
        truncate_records(drift, 0 if checkpoint is None else checkpoint.observed_round)
    if checkpoint is None:
        # The first checkpoint precedes the first round, so without one no node has trained.
        return Start(RunState("running", uuid.uuid4().hex, 0), checkpoints, None)
    if checkpoint.config_hash != config_hash(cfg):
        raise CheckpointError(f"the checkpoint in {folder.path} was made with other settings")
    _warn_of_additional_evaluations(folder, cfg)
    incarnation = 1 + _last_incarnation(folder, checkpoint)
    return Start(RunState("running", checkpoint.run_id, incarnation), checkpoints, checkpoint)


def _warn_of_additional_evaluations(folder: RunFolder, cfg: Config) -> None:
    """Say where a resume with more rounds differs from a run that had them from the start."""
    every, rounds = cfg.evaluation.every, cfg.federation.rounds
    lines = [line for line in read_metrics(folder.path) if line["evaluation"] is not None]
    evaluated = [int(str(line["evaluated_round"])) for line in lines]
    for server_round in evaluated:
        if server_round % every and server_round < rounds:
            log(
                WARNING,
                "Round %d was evaluated as the last of an earlier total, though it is no multiple "
                "of evaluation.every=%d. It counts for the selection of the round and for "
                "patience, so the result may differ from that of %d rounds without a break",
                server_round,
                every,
                rounds,
            )


def _last_incarnation(folder: RunFolder, checkpoint: Checkpoint) -> int:
    """The highest so far: a start that ended before its first checkpoint counts too."""
    try:
        state = read_state(folder.path)
    except RunFolderError:
        return checkpoint.incarnation
    if state.run_id != checkpoint.run_id:
        raise CheckpointError(f"the checkpoint in {folder.path} belongs to another run")
    return max(state.incarnation, checkpoint.incarnation)


def config_hash(cfg: Config) -> str:
    """Hash of the settings that decide a run's results."""
    settings = json.dumps(fixed_settings(cfg), sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()
