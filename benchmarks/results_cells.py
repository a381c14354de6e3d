"""Cells of the results table: one configuration and seed each, made once and kept."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.compose import compose, options
from conf.tree import Config, to_json
from server_app.grid import LocalGrid
from server_app.results import load_result

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
        return words if self.path is None else [*words, f"dataset.path={self.path}"]


@dataclass(frozen=True)
class RunCell:
    """A federated run."""

    source: DataSource
    protocol: str
    seed: int
    root: Path
    strategy: str

    @property
    def label(self) -> str:
        """Name of the run."""
        return f"{self.source.name}-{self.protocol}-{self.strategy}-s{self.seed}"

    def config(self) -> Config:
        """The run's configuration."""
        words = [*self.source.overrides(self.protocol), f"strategy={self.strategy}", ROUNDS]
        words += [f"seed={self.seed}", f"name={self.label}", f"output={self.root.resolve()}"]
        return compose([*words, "federation.grid=local"])

    @property
    def folder(self) -> Path:
        """Where the run is."""
        return self.root / self.label

    @property
    def _stamp(self) -> Path:
        return self.root / f"{self.label}.json"

    def make(self) -> None:
        """Run, unless a run of this configuration was completed."""
        from server_app.run import run_server

        cfg = self.config()
        text = to_json(cfg)
        if self._stamp.is_file() and self._stamp.read_text("utf-8") == text:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        run_server(LocalGrid(cfg.federation.num_nodes), cfg)
        for leftover in ("nodes", "strategy"):  # private state and tables: no figure needs them
            shutil.rmtree(self.folder / leftover, ignore_errors=True)
        self._stamp.write_text(text, encoding="utf-8")

    @property
    def is_made(self) -> bool:
        """Whether the run was completed."""
        return self._stamp.is_file()

    def metrics(self) -> dict[str, float]:
        """Metrics of the selected round."""
        return load_result(self.folder).metrics


@dataclass(frozen=True)
class ReferenceCell:
    """All references of one split and seed."""

    source: DataSource
    protocol: str
    seed: int
    root: Path

    @property
    def label(self) -> str:
        """Name of its file."""
        return f"{self.source.name}-{self.protocol}-references-s{self.seed}"

    @property
    def path(self) -> Path:
        """The file."""
        return self.root / f"{self.label}.rows.json"

    def make(self) -> None:
        """Fit and rank what can be fitted here."""
        from server_app.cli_reference_rows import reference_rows
        from server_app.references import METHODS

        if self.path.is_file():
            return
        words = [*self.source.overrides(self.protocol), f"seed={self.seed}", ROUNDS]
        rows = reference_rows(
            compose(words), list(METHODS), on_unavailable=lambda name, error: None
        )
        self.root.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps([row.as_json() for row in rows]), encoding="utf-8")

    @property
    def is_made(self) -> bool:
        """Whether the references were fitted."""
        return self.path.is_file()

    def rows(self) -> list[dict[str, Any]]:
        """The rows as plain values."""
        found: list[dict[str, Any]] = json.loads(self.path.read_text("utf-8"))
        return found


Cell = RunCell | ReferenceCell
"""Something to be made, unless it is there."""
