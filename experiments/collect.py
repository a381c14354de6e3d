"""From folders to runs: what finished, what did not, and the references beside them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conf.tree import ConfigError, from_mapping
from experiments.file_names import FAILED, REFERENCES, STAMP
from experiments.user_values import belongs
from server_app.callbacks import read_metrics
from server_app.errors import ServerError, StorageError
from server_app.references.rows import ReferenceRow, Trial
from server_app.results import RunResult, load_result
from server_app.run_folder import CONFIG, flatten, read_config, read_state, settings_of
from server_app.user_ranks import UserRanks, load_ranks, load_user_ranks

HOW_TO_READ = frozenset(
    f"dataset.{key}"
    for key in ("path", "titles", "fetch", "format", "separator", "header", "columns", "encoding",
                "rows", "users", "items", "sha256", "unknown_items")
)  # fmt: skip
"""Settings that say where data is and how it is read; what was read is told by its size, and by
the digest of its file where a sweep noted it."""


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
    data: str | None = None
    """SHA-256 of the data file, where a sweep made the run of one."""

    @property
    def seed(self) -> int:
        """Of the run."""
        return self.result.seed


@dataclass(frozen=True)
class Reference:
    """A reference of one seed, with its users' ranks where they were kept."""

    row: ReferenceRow
    ranks: UserRanks | None
    made_of: Mapping[str, Any] = field(default_factory=dict)
    """Settings of data and protocol by dotted key, and ``data``, the digest of the data file;
    empty where the file does not say."""


@dataclass(frozen=True)
class Collection:
    """What the folders hold."""

    runs: tuple[Run, ...]
    references: tuple[Reference, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why a run is in no table, by its name."""
    remarks: tuple[str, ...] = ()
    """What is to be known about runs that are."""


def split_part(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those settings that decide which items are held out and ranked."""
    return {
        key: value
        for key, value in settings.items()
        if (key.startswith(("dataset.", "protocol.")) or key in {"data", "evaluation.users"})
        and key not in HOW_TO_READ | {"protocol.select"}
    }


def collect(folders: Iterable[Path]) -> Collection:
    """Everything in run folders, sweep folders and folders of these, each run once.

    Raises:
        ConfigError: for a folder that is not there, or holds no run.
        ServerError: for a file of references that cannot be read.

    """
    found, failed, beside = set[Path](), dict[Path, str](), set[Path]()
    for folder in folders:
        failed_here = dict[Path, str]()
        here = _run_folders(folder, failed_here, beside)
        if not here and not failed_here:
            raise ConfigError(f"there are no runs in {folder}")
        found |= set(here)
        failed |= failed_here
    runs, remarks = list[Run](), list[str]()
    for path in sorted(found, key=lambda path: (path.name, str(path))):
        try:
            runs.append(_run(path, remarks))
            failed.pop(path, None)
        except ServerError as error:
            failed.setdefault(path, str(error).replace(f"{path}", path.name))
    left_out = _named(failed, found)
    _without_starts(runs, left_out)
    references = [reference for path in sorted(beside) for reference in _references(path)]
    return Collection(
        tuple(runs), _distinct(references), dict(sorted(left_out.items())), tuple(remarks)
    )


def _named(failed: Mapping[Path, str], found: Iterable[Path]) -> dict[str, str]:
    """The reasons by the run's name, with its sweep's where several sweeps have the name."""
    count = Counter(path.name for path in {*failed, *found})
    return {
        path.name if count[path.name] == 1 else f"{path.parent.name}/{path.name}": why
        for path, why in failed.items()
    }


def _run_folders(folder: Path, failed: dict[Path, str], beside: set[Path]) -> list[Path]:
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
                failed.setdefault(path / name.removesuffix(FAILED), _why(path / name))
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
        settings = settings_of(from_mapping(raw))
    except ConfigError as error:
        remarks.append(f"{path.name} was configured by another version: {error}")
        settings = flatten(raw)
    ranks, data = _ranks(path, result, remarks), _data_of(path)
    return Run(result, settings, _records(path), ranks, data)


def _records(path: Path) -> list[dict[str, object]]:
    try:
        return read_metrics(path)
    except ValueError as error:
        raise ServerError(f"its metrics.jsonl cannot be read: {error}") from None


def _data_of(path: Path) -> str | None:
    """What a sweep noted of the run's data file."""
    try:
        data = json.loads((path / STAMP).read_text("utf-8"))["data"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return data if isinstance(data, str) else None


def _ranks(path: Path, result: RunResult, remarks: list[str]) -> Mapping[str, UserRanks]:
    """The run's ranks, if they are those of its figures."""
    try:
        ranks = load_user_ranks(path) or {}
    except StorageError as error:
        why = str(error).replace(f"{path}/", "")
        remarks.append(f"{path.name}: its user ranks are not used: {why}")
        return {}
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
            values = json.loads(path.read_text("utf-8"))
            rows = [_row(value) for value in values["rows"]]
            made_of = _made_of(values)
        except (ValueError, TypeError, KeyError) as error:
            raise ServerError(f"{path} holds no references: {error!r}") from None
        for row in rows:
            ranks = path.with_name(f"{path.stem}.{row.method}.ranks.npz")
            yield Reference(row, load_ranks(ranks) if ranks.is_file() else None, made_of)


def _made_of(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a sweep noted beside the rows of a split; nothing in files that do not say."""
    noted = values.get("made_of") or {}
    return {**noted.get("config", {}), "data": noted.get("data")} if noted else {}


def _row(values: Mapping[str, Any]) -> ReferenceRow:
    trials = tuple(Trial(**trial) for trial in values.get("trials", ()))
    return ReferenceRow(**{**values, "trials": trials})


def _distinct(references: Iterable[Reference]) -> tuple[Reference, ...]:
    """The first of each method and seed on the same data, held-out items and candidates."""
    kept = dict[tuple[object, ...], Reference]()
    for reference in references:
        row = reference.row
        size = (row.num_users, row.num_items)
        split = json.dumps(split_part(reference.made_of), sort_keys=True)
        key = (row.dataset, row.protocol, size, split, row.method, row.seed)
        kept.setdefault(key, reference)
    return tuple(kept.values())
