"""From folders to runs: what finished, what did not, and the references beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conf.tree import ConfigError, from_mapping, to_json
from experiments.user_values import belongs
from server_app.callbacks import read_metrics
from server_app.errors import ServerError
from server_app.references.rows import ReferenceRow, Trial
from server_app.results import RunResult, load_result
from server_app.run_folder import CONFIG, flatten, read_config, read_state
from server_app.user_ranks import UserRanks, load_ranks, load_user_ranks

REFERENCES = "references"
FAILED = ".failed.json"


@dataclass(frozen=True)
class Run:
    """A run that finished."""

    result: RunResult
    settings: Mapping[str, Any]
    """The configuration by dotted key; what an older version did not know has its default."""
    records: Sequence[Mapping[str, Any]]
    """The lines of ``metrics.jsonl``."""
    ranks: Mapping[str, UserRanks] = field(default_factory=dict)
    """By ``model`` and ``popularity``; empty where the run did not keep them."""

    @property
    def seed(self) -> int:
        """Of the run."""
        return self.result.seed


@dataclass(frozen=True)
class Reference:
    """A reference of one seed, with its users' ranks where they were kept."""

    row: ReferenceRow
    ranks: UserRanks | None


@dataclass(frozen=True)
class Collection:
    """What the folders hold."""

    runs: tuple[Run, ...]
    references: tuple[Reference, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why a run is in no table, by its name."""
    remarks: tuple[str, ...] = ()
    """What is to be known about runs that are."""


def collect(folders: Iterable[Path]) -> Collection:
    """Everything in run folders, sweep folders and folders of these, each run once.

    Raises:
        ConfigError: for a folder that is not there, or holds no run.
        ServerError: for a file of references that cannot be read.

    """
    found, failed, beside = set[Path](), dict[str, str](), set[Path]()
    for folder in folders:
        here = _run_folders(folder, failed, beside)
        if not here and not failed:
            raise ConfigError(f"there are no runs in {folder}")
        found |= set(here)
    runs, remarks = list[Run](), list[str]()
    for path in sorted(found, key=lambda path: (path.name, str(path))):
        try:
            runs.append(_run(path, remarks))
            failed.pop(path.name, None)
        except ServerError as error:
            failed.setdefault(path.name, str(error).replace(f"{path}", path.name))
    _without_starts(runs, failed)
    references = [reference for path in sorted(beside) for reference in _references(path)]
    return Collection(
        tuple(runs), _distinct(references), dict(sorted(failed.items())), tuple(remarks)
    )


def _run_folders(folder: Path, failed: dict[str, str], beside: set[Path]) -> list[Path]:
    """Run folders at or below ``folder``; notes failed jobs and folders of references."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}")
    here = folder.resolve()
    if (here / CONFIG).is_file():
        beside |= {here.parent / REFERENCES} & set(here.parent.iterdir())
        return [here]
    found = list[Path]()
    for root, names, files in os.walk(here):
        path = Path(root)
        if (path / CONFIG).is_file():
            names.clear()
            found.append(path)
            continue
        if REFERENCES in names:
            names.remove(REFERENCES)
            beside.add(path / REFERENCES)
        for name in sorted(files):
            if name.endswith(FAILED):
                failed.setdefault(name.removesuffix(FAILED), _why(path / name))
    return found


def _why(path: Path) -> str:
    """What a job's file says about its failure."""
    try:
        values = json.loads(path.read_text("utf-8"))
        return f"failed: {values['error']}"
    except (OSError, ValueError, TypeError, KeyError):
        return "failed"


def _run(path: Path, remarks: list[str]) -> Run:
    """The run in a folder; ServerError where it has not finished or cannot be read."""
    state = read_state(path)
    if not state.has_result:
        raise ServerError(f"{state.status}{f': {state.error}' if state.error else ''}")
    if state.clients_failed:
        remarks.append(f"{path.name} finished although clients failed: {state.error}")
    result, raw = load_result(path), read_config(path)
    try:
        settings = flatten(json.loads(to_json(from_mapping(raw))))
    except ConfigError as error:
        remarks.append(f"{path.name} was configured by another version: {error}")
        settings = flatten(raw)
    return Run(result, settings, read_metrics(path), _ranks(path, result, remarks))


def _ranks(path: Path, result: RunResult, remarks: list[str]) -> Mapping[str, UserRanks]:
    """The run's ranks, if they are those of its figures."""
    ranks = load_user_ranks(path) or {}
    figures = {"model": result.metrics, "popularity": result.popularity or {}}
    for name, kept in ranks.items():
        if not belongs(kept, figures.get(name, {})):
            remarks.append(f"{path.name}: its user ranks are not those of its result, not used")
            return {}
    return ranks


def _without_starts(runs: list[Run], left_out: dict[str, str]) -> None:
    """Leave out runs that only made the items another run started from."""
    starts = {
        f"{run.result.name}-init": run.result.name
        for run in runs
        if run.settings.get("init.strategy")
    }
    for run in [run for run in runs if run.result.name in starts]:
        runs.remove(run)
        left_out[run.result.name] = f"the start of {starts[run.result.name]}"


def _references(folder: Path) -> Iterator[Reference]:
    for path in sorted(folder.glob("*.json")):
        try:
            values = json.loads(path.read_text("utf-8"))["rows"]
            rows = [_row(value) for value in values]
        except (ValueError, TypeError, KeyError) as error:
            raise ServerError(f"{path} holds no references: {error!r}") from None
        for row in rows:
            ranks = path.with_name(f"{path.stem}.{row.method}.ranks.npz")
            yield Reference(row, load_ranks(ranks) if ranks.is_file() else None)


def _row(values: Mapping[str, Any]) -> ReferenceRow:
    trials = tuple(Trial(**trial) for trial in values.get("trials", ()))
    return ReferenceRow(**{**values, "trials": trials})


def _distinct(references: Iterable[Reference]) -> tuple[Reference, ...]:
    """The first of each method, data set, protocol, size and seed."""
    kept = dict[tuple[object, ...], Reference]()
    for reference in references:
        row = reference.row
        size = (row.num_users, row.num_items)
        kept.setdefault((row.dataset, row.protocol, size, row.method, row.seed), reference)
    return tuple(kept.values())
