"""The folder of one run: its name, its lock, its configuration and its state."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from conf.tree import Config, to_json
from server_app.errors import RunFolderError
from server_app.files import replace_file, replace_json
from server_app.lock import LOCK, is_locked, locked

CONFIG, STATE = "config.yaml", "state.json"

FREE = (
    "resume",
    "output",
    "cache",
    "dataset.path",
    "dataset.titles",
    "engine.workers",
    "federation.grid",
    "federation.workers",
    "federation.rounds",
    "federation.deadline_s",
    "federation.register_timeout_s",
    "federation.rejoin_s",
    "federation.min_nodes",
    "federation.min_share",
    "federation.on_missing",
    "federation.retries",
    "federation.checkpoint_every",
    "tracking.tensorboard",
    "tracking.mlflow",
    "tracking.mlflow_uri",
    "tracking.mlflow_experiment",
)
"""Settings that a resume may change: where things are, how many work at once, how long to wait,
what to do about nodes that are missing, who follows. The data itself is compared by its
fingerprint."""


@dataclass(frozen=True)
class RunState:
    """What ``state.json`` says, for listings and for the next resume."""

    status: str
    """``running``, ``completed`` or ``failed``; ``interrupted`` when read without a process."""
    run_id: str
    incarnation: int
    error: str | None = None
    clients_failed: bool = False
    """All rounds were trained and ``result.json`` is written, but clients failed on the way."""

    @property
    def has_result(self) -> bool:
        """Whether ``result.json`` is the result of this state."""
        return self.status == "completed" or self.clients_failed


def with_defaults(cfg: Config, now: datetime | None = None) -> Config:
    """The configuration with its output folder and name filled in; names are never reused."""
    cfg = replace(cfg, output=cfg.output or str(Path.cwd() / "runs"))
    if cfg.name is not None:
        return cfg
    stamp = (now or datetime.now()).strftime("%Y%m%d-%H%M%S")
    base = f"{cfg.dataset.name}-{cfg.strategy_name}-s{cfg.seed}-{stamp}"
    name, copy = base, 1
    while True:
        try:
            # Making the folder is what reserves the name against another run.
            (Path(cfg.output) / name).mkdir(parents=True)
            return replace(cfg, name=name)
        except FileExistsError:
            copy += 1
            name = f"{base}-{copy}"


class RunFolder:
    """One run's folder, locked by this process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    @contextmanager
    def opened(cls, cfg: Config) -> Iterator[RunFolder]:
        """The locked folder of a run whose configuration was checked and written.

        Raises:
            RunFolderError: when the folder is in use, holds a run already (without
                ``resume``), holds none (with it), or was made with other settings.

        """
        if cfg.name is None:
            raise RunFolderError("the run has no name")
        path = Path(cfg.output) / cfg.name
        if cfg.resume and not (path / CONFIG).exists():
            raise RunFolderError(f"there is no run to resume in {path}")
        path.mkdir(parents=True, exist_ok=True)
        with locked(path):
            if cfg.resume:
                check_resumable(read_config(path), json.loads(to_json(cfg)))
            elif any(entry.name != LOCK for entry in path.iterdir()):
                raise RunFolderError(
                    f"{path} holds a run already: choose another name, or resume=true"
                )
            text = yaml.safe_dump(json.loads(to_json(cfg)), sort_keys=True, allow_unicode=True)
            replace_file(path / CONFIG, text.encode())
            yield cls(path)

    def write_state(self, state: RunState) -> None:
        """Replace ``state.json``."""
        replace_json(self.path / STATE, asdict(state))


def strategy_folder(folder: Path) -> Path:
    """Where a run's strategy keeps files of its own."""
    return folder / "strategy"


def read_state(folder: Path) -> RunState:
    """State of a run; ``interrupted`` when it says running and no process holds its lock.

    Raises:
        RunFolderError: when there is no readable state.

    """
    try:
        state = RunState(**json.loads((folder / STATE).read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(f"{folder} has no readable {STATE}: {error}") from error
    if state.status == "running" and not is_locked(folder):
        return replace(state, status="interrupted")
    return state


def read_config(folder: Path) -> dict[str, object]:
    """The resolved configuration that a run was started with, as a plain mapping.

    Raises:
        RunFolderError: when it cannot be read.

    """
    try:
        values = yaml.safe_load((folder / CONFIG).read_text("utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())  # what yaml says has several lines
        raise RunFolderError(f"{folder / CONFIG} cannot be read: {why}") from error
    if not isinstance(values, dict):
        raise RunFolderError(f"{folder / CONFIG} is not a configuration")
    return values


def check_resumable(old: Mapping[str, object], new: Mapping[str, object]) -> None:
    """Raise RunFolderError naming the first setting in which a resume may not differ."""
    before, after = flatten(old), flatten(new)
    for key in sorted(before.keys() | after.keys()):
        if key not in FREE and before.get(key) != after.get(key):
            raise RunFolderError(
                f"cannot resume with another {key}: the run has {before.get(key)!r}, "
                f"asked for {after.get(key)!r}"
            )
    rounds = "federation.rounds"
    if int(str(after[rounds])) < int(str(before[rounds])):
        raise RunFolderError(
            f"cannot resume with fewer rounds: the run has {rounds}={before[rounds]}, "
            f"asked for {after[rounds]}"
        )


def fixed_settings(cfg: Config) -> dict[str, object]:
    """The settings that decide a run's results, by dotted key."""
    return {key: value for key, value in sorted(settings_of(cfg).items()) if key not in FREE}


def settings_of(cfg: Config) -> dict[str, object]:
    """All settings by dotted key, with the plain values that JSON has."""
    return flatten(json.loads(to_json(cfg)))


def flatten(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested mappings as one mapping with dotted keys."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
