"""The folder of a sweep: what was asked for, and which tasks failed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conf.build import ConfigError, build
from experiments.file_names import FAILED
from experiments.sweep.jobs import Job
from experiments.sweep.spec import Select, Spec
from experiments.sweep.tasks import Failure, Task
from server_app.files import replace_json
from server_app.lock import LOCK
from server_app.run_folder import CONFIG

ASKED, LOG = "sweep.json", "processes.log"


def check_free(folder: Path) -> None:
    """Refuse a folder that holds something else than a sweep.

    Raises:
        ConfigError: one line.

    """
    if (folder / ASKED).is_file() or not folder.exists():
        return
    if not folder.is_dir() or any(entry.name != LOCK for entry in folder.iterdir()):
        raise ConfigError(f"{folder} holds something else than a sweep; choose another --name")


def write_asked(folder: Path, spec: Spec, jobs: Sequence[Job]) -> None:
    """Write ``sweep.json``: the sweep as it was asked for, and its jobs."""
    listed = [
        {"label": job.label, "arm": job.arm, "seed": job.config.seed, "overrides": job.overrides}
        for job in jobs
    ]
    replace_json(folder / ASKED, {**dataclasses.asdict(spec), "jobs": listed})


def read_asked(folder: Path) -> dict[str, Any]:
    """What ``sweep.json`` says.

    Raises:
        ConfigError: when there is no sweep.

    """
    try:
        found: dict[str, Any] = json.loads((folder / ASKED).read_text("utf-8"))
        _ = [(job["label"], job["arm"], job["overrides"]) for job in found["jobs"]]
        _ = found["references"]
    except FileNotFoundError:
        raise ConfigError(f"there is no sweep in {folder}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{folder / ASKED} is not of this version: {error!r}") from None
    return found


def told_to_reports(folder: Path) -> tuple[Select | None, tuple[str, ...]]:
    """``select`` and ``against`` of the sweep in a folder; nothing where there is no sweep."""
    if not (folder / ASKED).is_file():
        return None, ()
    found = read_asked(folder)
    select = found.get("select")
    against = tuple(str(text) for text in found.get("against", ()))
    return None if select is None else build(Select, select, "select"), against


def left_over(folder: Path, jobs: Sequence[Job]) -> list[str]:
    """Runs in the folder that are none of the jobs', of an earlier version of the sweep."""
    known = {job.label for job in jobs} | {f"{job.label}-init" for job in jobs}
    found = sorted(path.parent.name for path in folder.glob(f"*/{CONFIG}"))
    return [name for name in found if name not in known]


def write_failure(folder: Path, task: Task, failure: Failure) -> None:
    """Keep why a task failed, and what it was made of."""
    values: dict[str, object] = {
        "error": failure.reason,
        "kind": failure.kind,
        "detail": failure.detail,
    }
    values |= {"deterministic": failure.deterministic, "made_of": task.made_of}
    replace_json(_note(folder, task.label), values)


def forget_failure(folder: Path, task: Task) -> None:
    """The task is tried again, or has succeeded."""
    _note(folder, task.label).unlink(missing_ok=True)


def known_failure(folder: Path, task: Task) -> str | None:
    """The reason for which the task failed, and would again: another try needs to be asked for."""
    noted = _noted(folder, task.label)
    if noted is None or not noted.get("deterministic"):
        return None
    same = noted.get("made_of") == json.loads(json.dumps(task.made_of))
    return str(noted.get("error")) if same else None


def failed_for_good(folder: Path, task: Task) -> bool:
    """Whether the last try of the task failed in a way that a checkpoint would lead to again."""
    noted = _noted(folder, task.label)
    return noted is not None and bool(noted.get("deterministic"))


def _noted(folder: Path, label: str) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = json.loads(_note(folder, label).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, Mapping) else None


def _note(folder: Path, label: str) -> Path:
    return folder / f"{label}{FAILED}"
