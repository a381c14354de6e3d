"""Who may import whom, read from the sources; and what packaging promises."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = {"models", "strategies", "client_app", "server_app", "conf", "experiments"}
COMPOSITION_ROOT = re.compile(r"server_app/(cli\w*|grid)\.py|experiments/.*")

ALLOWED = {
    "models": {"models"},
    "strategies": {"models", "strategies"},
    "client_app": {"models", "strategies", "client_app", "conf"},
    "server_app": {"models", "strategies", "server_app", "conf"},
    "conf": {"conf"},
    "experiments": OURS,
}
CONF_FOR_APPS = {"conf.tree", "conf.fingerprint"}


def sources() -> list[Path]:
    return sorted(path for package in OURS for path in (ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Every imported module of a file, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module


def modules_imported(path: Path) -> set[str]:
    return set(imports(path))


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_layers(path: Path) -> None:
    where = path.relative_to(ROOT).as_posix()
    package = where.split("/")[0]
    found = modules_imported(path)
    tops = {module.split(".")[0] for module in found}
    if package == "models":
        third_party = tops - OURS - set(sys.stdlib_module_names)
        assert third_party <= {"torch", "numpy"}, where
    assert ("hydra" not in tops and "omegaconf" not in tops) or where == "conf/compose.py", where
    if COMPOSITION_ROOT.fullmatch(where):
        return
    assert tops & OURS <= ALLOWED[package], f"{where} imports {tops & OURS - ALLOWED[package]}"
    if package == "client_app":
        conf = {module for module in found if module.startswith("conf")}
        assert conf <= CONF_FOR_APPS, f"{where} imports {conf - CONF_FOR_APPS}"


def test_the_rule_sees_imports_inside_functions(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f():\n    import client_app.data\n    from server_app import run\n")
    assert modules_imported(file) == {"client_app.data", "server_app"}


def requirement_names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", text)[0] for text in requirements}


def test_uv_installs_nothing_for_a_run(tmp_path: Path) -> None:
    """A SuperLink runs this `uv sync` for every run of the app.

    Offline and with an empty cache it can only succeed when no dependency is left.
    """
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    project = tomllib.loads(text)
    wanted = [*project["project"]["dependencies"]]
    wanted += [r for group in project["project"]["optional-dependencies"].values() for r in group]
    overridden = project["tool"]["uv"]["override-dependencies"]
    assert requirement_names(overridden) == requirement_names(wanted)

    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "README.md").write_text("x")
    command = ["uv", "sync", "--python", sys.executable, "--no-install-project"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--no-install-package", "flwr", "--inexact"],
        cwd=tmp_path,
        env={
            "UV_OFFLINE": "1",
            "UV_CACHE_DIR": str(tmp_path / "cache"),
            "UV_PROJECT_ENVIRONMENT": str(tmp_path / "env"),
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    installed = {p.name for p in (tmp_path / "env").glob("lib/python*/site-packages/*.dist-info")}
    assert not installed


def test_every_dependency_has_an_exact_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
        if not line.startswith("#")
    ]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!_]+", line) for line in lines)
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines}
    wanted = requirement_names(project["dependencies"])
    wanted |= requirement_names(project["optional-dependencies"]["dev"])
    assert {name.lower() for name in wanted} <= pinned
