"""A copy of the application that `flwr run` can submit, from the installed packages.

It holds the sources of the five packages as they were really imported, so it is the same
whether the project was installed from a clone or a wheel. Its project file asks for Flower
alone: with more, a SuperLink could fetch torch for every run.
"""

from __future__ import annotations

import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

from conf.fingerprint import PACKAGES, SUFFIXES, code_fingerprint, package_folder

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedrecgel"
version = "{version}"
description = "Federated recommendation on Flower"
license = "Apache-2.0"
dependencies = ["flwr[simulation]>=1.42,<1.43"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedrecgel"

[tool.flwr.app.components]
serverapp = "server_app.app:app"
clientapp = "client_app.app:app"

[tool.flwr.app.config]
overrides = ""
"""


def stage(home: Path) -> Path:
    """The staged application under ``home/app``; made when this code was not staged yet."""
    target = home / "app" / code_fingerprint()[:16]
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            partial = Path(folder) / "app"
            _copy(partial)
            try:
                partial.rename(target)
            except OSError:
                # Another process staged the same code in the meantime.
                if not target.is_dir():
                    raise
    return target


def _copy(target: Path) -> None:
    for name in PACKAGES:
        shutil.copytree(package_folder(name), target / name, ignore=_not_source)
    (target / "pyproject.toml").write_text(PROJECT.format(version=version("fedrecgel")))


def _not_source(folder: str, names: list[str]) -> set[str]:
    """Names that are neither sources nor folders."""
    return {
        name
        for name in names
        if name.startswith((".", "__pycache__"))
        or ((Path(folder) / name).is_file() and Path(name).suffix not in SUFFIXES)
    }
