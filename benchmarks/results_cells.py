"""Cells of the results table: one configuration and seed each, made once and kept.

What was made is kept with the configuration it was made of, and made again when that differs.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.compose import compose, options
from conf.tree import Config, to_json
from server_app.cli_reference_rows import Settings, reference_rows
from server_app.errors import RoundError
from server_app.grid import LocalGrid
from server_app.references.base import UnavailableError
from server_app.references.rows import ReferenceRow
from server_app.results import RunResult, load_result

ROUNDS = "evaluation.every=10"
"""Rounds are compared every tenth round everywhere, the paper's experiments included."""


@dataclass(frozen=True)
class DataSource:
    """A data set by its word in ``conf/dataset``, and where its file is."""

    name: str
    path: Path | None = None

    @classmethod
    def parsed(cls, text: str) -> DataSource:
        """``NAME`` or ``NAME=PATH``."""
        name, _, path = text.partition("=")
        return cls(name, Path(path).resolve() if path else None)

    @property
    def shown(self) -> str:
        """As on the command line, without the folder."""
        return self.name if self.path is None else f"{self.name}={self.path.name}"

    def overrides(self, protocol: str) -> list[str]:
        """Settings: the paper's experiment with its tuned settings where there is one."""
        experiment = f"{protocol}_{self.name}"
        known = experiment in options("experiment")
        words = [f"experiment={experiment}"] if known else [f"protocol={protocol}"]
        words += [] if known else [f"dataset={self.name}"]
        return [*words, *self.path_override()]

    def path_override(self) -> list[str]:
        """Where the file is, for data sets that come from one."""
        return [] if self.path is None else [f"dataset.path={self.path}"]


@dataclass(frozen=True)
class RunCell:
    """A federated run."""

    source: DataSource
    protocol: str
    seed: int
    root: Path
    strategy: str
    experiment: str | None = None
    """A preset of ``conf/experiment`` that says all the rest, in place of the usual rounds."""

    @property
    def label(self) -> str:
        """Name of the run."""
        setting = self.experiment or f"{self.source.name}-{self.protocol}"
        return f"{setting}-{self.strategy}-s{self.seed}"

    def config(self) -> Config:
        """The run's configuration."""
        words = [*self._setting(), f"strategy={self.strategy}"]
        words += [f"seed={self.seed}", f"name={self.label}", f"output={self.root.resolve()}"]
        return compose([*words, "federation.grid=local"])

    def _setting(self) -> list[str]:
        if self.experiment is None:
            return [*self.source.overrides(self.protocol), ROUNDS]
        return [f"experiment={self.experiment}", *self.source.path_override()]

    @property
    def folder(self) -> Path:
        """Where the run is."""
        return self.root / self.label

    @property
    def _stamp(self) -> Path:
        return self.root / f"{self.label}.json"

    @property
    def _failure(self) -> Path:
        return self.root / f"{self.label}.failed.json"

    def make(self) -> None:
        """Run, unless a run of this configuration was completed or has failed in a round.

        Raises:
            ServerError: when the run fails. A round that failed is noted: it would do so again.

        """
        from server_app.run import run_server

        cfg = self.config()
        text = to_json(cfg)
        if self.is_made and self._stamp.read_text("utf-8") == text:
            return
        if self._failed_with(text):
            raise RoundError(self.failure)
        shutil.rmtree(self.folder, ignore_errors=True)
        for old in (self._stamp, self._failure):
            old.unlink(missing_ok=True)
        try:
            run_server(LocalGrid(cfg.federation.num_nodes), cfg)
        except RoundError as error:
            noted = {"config": text, "error": str(error)}
            _write(self._failure, noted)
            raise
        for leftover in ("nodes", "strategy"):  # private state and tables: no figure needs them
            shutil.rmtree(self.folder / leftover, ignore_errors=True)
        self._stamp.write_text(text, encoding="utf-8")

    @property
    def is_made(self) -> bool:
        """Whether the run was completed."""
        return self._stamp.is_file()

    @property
    def failure(self) -> str | None:
        """What went wrong in a round, when there are no figures for that reason."""
        if not self._failure.is_file():
            return None
        return str(_read(self._failure)["error"])

    def _failed_with(self, text: str) -> bool:
        noted = self._failure
        return noted.is_file() and _read(noted)["config"] == text

    def metrics(self) -> dict[str, float]:
        """Metrics of the selected round."""
        return self.result().metrics

    def result(self) -> RunResult:
        """All that the run says."""
        return load_result(self.folder)


@dataclass(frozen=True)
class SettingsCell:
    """Settings of the references for a data set: chosen on validation under strict, seed 0."""

    source: DataSource
    root: Path

    @property
    def label(self) -> str:
        """Name of its file."""
        return f"{self.source.name}-references"

    @property
    def path(self) -> Path:
        """The file."""
        return self.root / f"{self.label}.settings.json"

    def make(self) -> None:
        """Fit the grid of every method that can be fitted here."""
        from server_app.references import METHODS

        grids = {name: [dataclasses.asdict(c) for c in m.grid] for name, m in METHODS.items()}
        words = [*self.source.overrides("strict"), "seed=0", ROUNDS]
        cfg = compose(words)
        made_of = {"config": to_json(cfg), "grids": grids}
        if self.path.is_file() and _read(self.path)["made_of"] == made_of:
            return
        rows = _fitted(cfg, {}, tune=True)
        found = {row.method: row.settings for row in rows}
        _write(self.path, {"made_of": made_of, "settings": found})

    @property
    def is_made(self) -> bool:
        """Whether the settings were chosen."""
        return self.path.is_file()

    def settings(self) -> dict[str, dict[str, Any]]:
        """Values by method and key."""
        found: dict[str, dict[str, Any]] = _read(self.path)["settings"]
        return found


@dataclass(frozen=True)
class ReferenceCell:
    """All references of one split and seed, with the settings chosen for the data set."""

    source: DataSource
    protocol: str
    seed: int
    root: Path
    given: Settings | None = None
    """The methods and settings, where they were chosen elsewhere."""

    @property
    def label(self) -> str:
        """Name of its file."""
        kind = "references" if self.given is None else "given-references"
        return f"{self.source.name}-{self.protocol}-{kind}-s{self.seed}"

    @property
    def path(self) -> Path:
        """The file."""
        return self.root / f"{self.label}.rows.json"

    def make(self) -> None:
        """Fit and rank what can be fitted here."""
        settings = self.given
        if settings is None:
            settings = SettingsCell(self.source, self.root).settings()
        cfg = compose([*self.source.overrides(self.protocol), f"seed={self.seed}", ROUNDS])
        made_of = {"config": to_json(cfg), "settings": settings}
        if self.path.is_file() and _read(self.path)["made_of"] == made_of:
            return
        rows = [row.as_json() for row in _fitted(cfg, settings, tune=False)]
        _write(self.path, {"made_of": made_of, "rows": rows})

    @property
    def is_made(self) -> bool:
        """Whether the references were fitted."""
        return self.path.is_file()

    def rows(self) -> list[dict[str, Any]]:
        """The rows as plain values."""
        found: list[dict[str, Any]] = _read(self.path)["rows"]
        return found


def _fitted(cfg: Config, settings: Settings, *, tune: bool) -> list[ReferenceRow]:
    from server_app.references import METHODS

    def skip(name: str, error: UnavailableError) -> None:
        print(f"{name} is left out: {error}", flush=True)

    methods = [name for name in METHODS if tune or name in settings]
    return reference_rows(cfg, methods, settings=settings, tune=tune, on_unavailable=skip)


def _read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


Cell = RunCell | ReferenceCell
"""A part of a table, to be made unless it is there."""
