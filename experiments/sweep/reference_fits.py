"""Fits of references, and the files that keep what came of them with what they were made of."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from conf.tree import Config
from experiments.sweep.jobs import data_digest, result_settings
from server_app.cli_common import quiet_flower
from server_app.cli_reference_rows import reference_rows
from server_app.files import replace_json
from server_app.references import METHODS
from server_app.references.base import ImplicitOrOwn, MissingExtraError, UnavailableError
from server_app.user_ranks import UserRanks


class LeftOut:
    """Methods that could not be fitted."""

    def __init__(self) -> None:
        self._reasons: dict[str, dict[str, object]] = {}

    def __call__(self, name: str, error: UnavailableError) -> None:
        """Note a method and why."""
        missing = isinstance(error, MissingExtraError)
        self._reasons[name] = {"reason": str(error), "missing": missing}

    def as_json(self) -> dict[str, object]:
        """All that were noted, as the files keep it."""
        return {"left_out": self._reasons}


def fitted_rows(
    config: Config,
    methods: Sequence[str],
    settings: dict[str, dict[str, Any]],
    left_out: LeftOut,
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


def split_made_of(config: Config) -> dict[str, Any]:
    """What decides a reference's figures: data, split, who is ranked, and the order of sums."""
    parts = ("dataset.", "protocol.")
    single = ("seed", "evaluation.users", "evaluation.cutoffs", "federation.num_nodes")
    settings = {
        key: value
        for key, value in result_settings(config).items()
        if key.startswith(parts) or key in single
    }
    return {"config": settings, "data": data_digest(config.dataset.path)}


def is_kept(path: Path, made_of: dict[str, Any]) -> bool:
    """Whether the file is of this, and no package has come that a method lacked then."""
    try:
        found = read_json(path)
        same = found["made_of"] == json.loads(json.dumps(made_of))
        missing = [name for name, why in found["left_out"].items() if why["missing"]]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return same and not any(map(_is_installed, missing))


def needs_ours(name: str) -> bool:
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


def read_json(path: Path) -> Any:
    """The content of a file."""
    return json.loads(path.read_text("utf-8"))


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Put a file in place, its folder too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_json(path, content)
