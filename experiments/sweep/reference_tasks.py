"""References of a sweep's splits: settings chosen once a data set, fits once a split, both kept."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.compose import compose
from conf.tree import Config, ConfigError
from experiments.file_names import REFERENCES
from experiments.sweep.reference_fits import (
    LeftOut,
    fitted_rows,
    is_kept,
    needs_ours,
    read_json,
    split_made_of,
    write_json,
)
from experiments.sweep.tasks import Report
from server_app.errors import ServerError
from server_app.references import METHODS
from server_app.user_ranks import UserRanks, save_ranks

NONE = "none"
OWN = {"implementation": "own"}
"""The same minimum by our own code, which the row names; only slower."""
SIZE = 10
"""Work of a fit in rounds, for the time left: a guess."""


def checked_methods(names: Iterable[str]) -> tuple[str, ...]:
    """Names of references, none for ``none``.

    Raises:
        ConfigError: for an unknown name.

    """
    chosen = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    if chosen == (NONE,):
        return ()
    if unknown := [name for name in chosen if name not in METHODS]:
        allowed = ", ".join([*METHODS, NONE])
        raise ConfigError(f"there is no reference {unknown[0]!r}; choose some of {allowed}")
    return chosen


@dataclass(frozen=True)
class SettingsTask:
    """Settings of the references of a data set: chosen on validation, ``strict``, seed 0."""

    config: Config
    methods: tuple[str, ...]
    folder: Path
    name: str
    """Of the data set, as in file names."""

    @property
    def label(self) -> str:
        """For lines and bars."""
        return f"references-settings-{self.name}"

    @property
    def size(self) -> int:
        """A fit for every setting of the grids."""
        return SIZE * sum(1 + len(METHODS[method].grid) for method in self.methods)

    @property
    def path(self) -> Path:
        """The file; not beside those of the splits, which hold rows."""
        return self.folder / REFERENCES / "settings" / f"{self.name}.json"

    @property
    def made_of(self) -> dict[str, Any]:
        """Data, protocol and grids."""
        grids = {m: [dataclasses.asdict(each) for each in METHODS[m].grid] for m in self.methods}
        return {**split_made_of(self.config), "grids": grids}

    def is_made(self) -> bool:
        """Whether there are settings of these grids and data."""
        return is_kept(self.path, self.made_of)

    def make(self, report: Report) -> None:
        """Fit the grids and keep the best settings."""
        left_out, own = LeftOut(), {name: OWN for name in self.methods if needs_ours(name)}
        rows = fitted_rows(self.config, self.methods, own, left_out)
        settings = {row["method"]: row["settings"] for row in rows}
        write_json(self.path, {"made_of": self.made_of, "settings": settings, **left_out.as_json()})

    def settings(self) -> dict[str, dict[str, Any]]:
        """The settings by method."""
        found: dict[str, dict[str, Any]] = read_json(self.path)["settings"]
        return found


@dataclass(frozen=True)
class ReferenceTask:
    """References of one split and seed, with the settings chosen for the data set."""

    config: Config
    chosen: SettingsTask
    name: str
    """``DATASET-PROTOCOL-sSEED``, the name of the file."""

    @property
    def label(self) -> str:
        """For lines and bars; a run may be called as the file is."""
        return f"references-{self.name}"

    @property
    def size(self) -> int:
        """A fit a method."""
        return SIZE * len(self.chosen.methods)

    @property
    def path(self) -> Path:
        """The file."""
        return self.chosen.folder / REFERENCES / f"{self.name}.json"

    @property
    def made_of(self) -> dict[str, Any]:
        """Split and settings; before these are chosen, nothing that could have been made."""
        settings = self.chosen.settings() if self.chosen.is_made() else None
        return {
            **split_made_of(self.config),
            "settings": settings,
            "methods": list(self.chosen.methods),
        }

    def is_made(self) -> bool:
        """Whether all references that can be fitted were fitted."""
        return self.chosen.is_made() and is_kept(self.path, self.made_of)

    def make(self, report: Report) -> None:
        """Fit and rank.

        Raises:
            ServerError: when the settings could not be chosen.

        """
        if not self.chosen.is_made():
            raise ServerError(f"{self.chosen.label} has failed")
        left_out = LeftOut()
        settings = self.chosen.settings()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = fitted_rows(self.config, self.chosen.methods, settings, left_out, self._keep_ranks)
        write_json(self.path, {"made_of": self.made_of, "rows": rows, **left_out.as_json()})

    def _keep_ranks(self, method: str, ranks: UserRanks) -> None:
        save_ranks(self.path.with_name(f"{self.name}.{method}.ranks.npz"), ranks)

    def left_out(self) -> dict[str, str]:
        """Why a method has no row, by its name."""
        return {name: str(why["reason"]) for name, why in read_json(self.path)["left_out"].items()}


def reference_tasks(
    configs: Sequence[Config], methods: tuple[str, ...], folder: Path
) -> tuple[list[SettingsTask], list[ReferenceTask]]:
    """What the runs of these configurations are compared with; nothing without methods."""
    if not methods:
        return [], []
    splits: dict[str, Config] = {}
    for config in configs:
        splits.setdefault(_key(config), config)
    strict = compose(["protocol=strict", "seed=0", "federation.grid=local"])
    tuned: dict[str, Config] = {}
    for config in splits.values():
        same = _on_data_of(strict, config)
        tuned.setdefault(_key(same), same)
    names = _names([_safe(config.dataset.name) for config in tuned.values()], list(tuned))
    settings = {
        key: SettingsTask(config, methods, folder, name)
        for (key, config), name in zip(tuned.items(), names, strict=True)
    }
    labels = _names([_split_name(config) for config in splits.values()], list(splits))
    tasks = []
    for config, label in zip(splits.values(), labels, strict=True):
        tasks.append(ReferenceTask(config, settings[_key(_on_data_of(strict, config))], label))
    return list(settings.values()), tasks


def _on_data_of(strict: Config, config: Config) -> Config:
    """``strict`` on the data of a split, with as many candidates as its catalogue has room for."""
    protocol = dataclasses.replace(strict.protocol, num_candidates=config.protocol.num_candidates)
    return dataclasses.replace(
        strict, dataset=config.dataset, cache=config.cache, protocol=protocol
    )


def _split_name(config: Config) -> str:
    return f"{_safe(config.dataset.name)}-{_safe(config.protocol.name)}-s{config.seed}"


def _names(plain: Sequence[str], keys: Sequence[str]) -> list[str]:
    """The names, with a digest of what they stand for where several would be the same."""
    counts = Counter(plain)
    digests = [hashlib.sha256(key.encode()).hexdigest()[:8] for key in keys]
    return [
        name if counts[name] == 1 else f"{name}-{digest}"
        for name, digest in zip(plain, digests, strict=True)
    ]


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)


def _key(config: Config) -> str:
    return json.dumps(split_made_of(config), sort_keys=True)
