"""References of a sweep's splits: settings chosen once a data set, fits once a split, both kept."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.compose import compose
from conf.tree import Config, ConfigError
from experiments.file_names import REFERENCES
from experiments.sweep.jobs import data_digest, result_settings
from experiments.sweep.tasks import Report
from server_app.cli_common import quiet_flower
from server_app.cli_reference_rows import reference_rows
from server_app.errors import ServerError
from server_app.files import replace_json
from server_app.references import METHODS
from server_app.references.base import ImplicitOrOwn, MissingExtraError, UnavailableError
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
        return {**_made_of(self.config), "grids": grids}

    def is_made(self) -> bool:
        """Whether there are settings of these grids and data."""
        return _is_made(self.path, self.made_of)

    def make(self, report: Report) -> None:
        """Fit the grids and keep the best settings."""
        left_out, own = _LeftOut(), {name: OWN for name in self.methods if _needs_ours(name)}
        rows = _fitted(self.config, self.methods, own, left_out)
        settings = {row["method"]: row["settings"] for row in rows}
        _write(self.path, {"made_of": self.made_of, "settings": settings, **left_out.as_json()})

    def settings(self) -> dict[str, dict[str, Any]]:
        """The settings by method."""
        found: dict[str, dict[str, Any]] = _read(self.path)["settings"]
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
        return {**_made_of(self.config), "settings": settings, "methods": list(self.chosen.methods)}

    def is_made(self) -> bool:
        """Whether all references that can be fitted were fitted."""
        return self.chosen.is_made() and _is_made(self.path, self.made_of)

    def make(self, report: Report) -> None:
        """Fit and rank.

        Raises:
            ServerError: when the settings could not be chosen.

        """
        if not self.chosen.is_made():
            raise ServerError(f"{self.chosen.label} has failed")
        left_out = _LeftOut()
        settings = self.chosen.settings()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = _fitted(self.config, self.chosen.methods, settings, left_out, self._keep_ranks)
        _write(self.path, {"made_of": self.made_of, "rows": rows, **left_out.as_json()})

    def _keep_ranks(self, method: str, ranks: UserRanks) -> None:
        save_ranks(self.path.with_name(f"{self.name}.{method}.ranks.npz"), ranks)

    def left_out(self) -> dict[str, str]:
        """Why a method has no row, by its name."""
        return {name: str(why["reason"]) for name, why in _read(self.path)["left_out"].items()}


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
    return json.dumps(_made_of(config), sort_keys=True)


def _made_of(config: Config) -> dict[str, Any]:
    """What decides a reference's figures: data, split, who is ranked, and the order of sums."""
    parts = ("dataset.", "protocol.")
    single = ("seed", "evaluation.users", "evaluation.cutoffs", "federation.num_nodes")
    settings = {
        key: value
        for key, value in result_settings(config).items()
        if key.startswith(parts) or key in single
    }
    return {"config": settings, "data": data_digest(config.dataset.path)}


class _LeftOut:
    """Methods that could not be fitted."""

    def __init__(self) -> None:
        self._reasons: dict[str, dict[str, object]] = {}

    def __call__(self, name: str, error: UnavailableError) -> None:
        missing = isinstance(error, MissingExtraError)
        self._reasons[name] = {"reason": str(error), "missing": missing}

    def as_json(self) -> dict[str, object]:
        return {"left_out": self._reasons}


def _fitted(
    config: Config,
    methods: Sequence[str],
    settings: dict[str, dict[str, Any]],
    left_out: _LeftOut,
    on_ranks: Callable[[str, UserRanks], None] | None = None,
) -> list[dict[str, Any]]:
    """Rows as plain values: with the settings given, or, of ranks unasked for, the grids' best."""
    quiet_flower()
    given = {name: settings[name] for name in methods if name in settings}
    rows = reference_rows(
        config,
        methods,
        settings=given,
        tune=on_ranks is None,
        on_unavailable=left_out,
        on_ranks=on_ranks,
    )
    return [row.as_json() for row in rows]


def _is_made(path: Path, made_of: dict[str, Any]) -> bool:
    """Whether the file is of this, and no package has come that a method lacked then."""
    try:
        found = _read(path)
        same = found["made_of"] == json.loads(json.dumps(made_of))
        missing = [name for name, why in found["left_out"].items() if why["missing"]]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return same and not any(map(_is_installed, missing))


def _needs_ours(name: str) -> bool:
    """Whether the method's library is missing, and this project has the method as well."""
    own = issubclass(METHODS[name], ImplicitOrOwn)
    return own and importlib.util.find_spec("implicit") is None


def _is_installed(name: str) -> bool:
    method = METHODS[name]
    try:
        method(method.Config(), lambda *_: None).check_installed()  # type: ignore[arg-type]
    except UnavailableError:
        return False
    return True


def _read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_json(path, content)
