"""The jobs of a sweep: overrides, label and checked configuration of each."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from client_app.files import file_on_disk
from conf.checks import check
from conf.compose import compose
from conf.overrides import absolute_overrides
from conf.tree import Config, ConfigError, build_strategy, from_mapping, to_json, to_mapping
from experiments.sweep.labels import arm_labels, labels
from experiments.sweep.spec import DEFAULTS, key_of, with_more
from server_app.cli_run import check_device, check_files
from server_app.run_folder import settings_of

OWN = {
    "name": "a job's name says what differs; --name names the sweep",
    "output": "--runs and --name say where a sweep is",
    "resume": "the same command again continues a sweep",
}
"""Settings that a sweep makes itself."""

PLACES = frozenset(
    {
        "cache",
        "dataset.path",
        "dataset.titles",
        "engine.workers",
        "federation.workers",
        "output",
        "resume",
    }
)
"""Settings without a part in the result: where things are, how many work at once."""


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    label: str
    """Name of the run and of its folder."""
    arm: str
    """The label without the seed."""
    overrides: tuple[str, ...]
    """As asked for, paths absolute."""
    config: Config

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return Path(self.config.output) / self.label


def planned(products: Sequence[Sequence[str]], folder: Path, here: Path) -> list[Job]:
    """The distinct jobs of these overrides, each composed and checked; nothing is written.

    ``folder``: of the sweep. ``here``: what relative paths are relative to.

    Raises:
        ConfigError: one line about the first job that cannot be run, which it names.

    """
    absolute = [absolute_overrides(job, here) for job in products]
    configs = _composed(absolute)
    first: dict[str, int] = {}
    for index, config in enumerate(configs):
        first.setdefault(to_json(config), index)
    kept = sorted(first.values())
    distinct = [products[index] for index in kept]
    jobs = zip(labels(distinct), arm_labels(distinct), kept, strict=True)
    return [
        _placed(label, arm, absolute[index], configs[index], folder) for label, arm, index in jobs
    ]


def replanned(
    asked: Sequence[tuple[str, str, Sequence[str]]], folder: Path, here: Path
) -> list[Job]:
    """The jobs of labels, arms and overrides that were planned before."""
    absolute = [absolute_overrides(words, here) for _, _, words in asked]
    return [
        _placed(label, arm, words, config, folder)
        for (label, arm, _), words, config in zip(asked, absolute, _composed(absolute), strict=True)
    ]


def result_settings(config: Config) -> dict[str, object]:
    """The settings that have a part in the result, by dotted key."""
    return {key: value for key, value in settings_of(config).items() if key not in PLACES}


@cache
def data_digest(path: str | None) -> str | None:
    """SHA-256 of a data file as it is on disk; None for data that are fetched or made up.

    Once a process: the file of a sweep is not to change while it runs.
    """
    if path is None:
        return None
    with file_on_disk(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _composed(jobs: Sequence[Sequence[str]]) -> list[Config]:
    """The configurations. Those that differ in the seed alone are composed once."""
    known: dict[tuple[str, ...], Config] = {}
    return [_with_context(words, known) for words in jobs]


def _with_context(words: Sequence[str], known: dict[tuple[str, ...], Config]) -> Config:
    try:
        return _one(words, known)
    except ConfigError as error:
        # One job of many: what is wrong may be a pair that no other job has.
        shown = " ".join(word for word in words if key_of(word) != "seed")
        raise ConfigError(f"{error} (in the job {shown})" if shown else str(error)) from None


def _one(words: Sequence[str], known: dict[tuple[str, ...], Config]) -> Config:
    for word in words:
        if key_of(word) in OWN:
            raise ConfigError(f"{word}: {OWN[key_of(word)]}")
    seeds = [word.partition("=")[2] for word in words if key_of(word) == "seed"]
    plain = bool(seeds) and seeds[-1].isdecimal() and not any("${seed" in word for word in words)
    rest = tuple(word for word in words if not plain or key_of(word) != "seed")
    if rest not in known:
        known[rest] = _checked(rest)
    if not plain:
        return known[rest]
    return from_mapping({**to_mapping(known[rest]), "seed": int(seeds[-1])})


def _checked(words: Sequence[str]) -> Config:
    for word in words:
        key, _, value = word.lstrip("+").partition("=")
        if (key, value) == ("federation", "deployment") or (
            key == "federation.grid" and value != "local"
        ):
            raise ConfigError(f"{word}: a sweep runs on the in-process grid, federation.grid=local")
    config = compose([*with_more(DEFAULTS, words), "federation.grid=local"])
    check_files(config)
    check_device(config)
    build_strategy(config)
    return config


def _placed(label: str, arm: str, words: Sequence[str], config: Config, folder: Path) -> Job:
    label = label or f"{config.strategy_name}-s{config.seed}"
    config = dataclasses.replace(config, name=label, output=str(folder))
    check(config)
    return Job(label, arm or config.strategy_name, tuple(words), config)
