"""The code fingerprint: what it covers, and that it follows what was really imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conf.fingerprint import PACKAGES, code_fingerprint, hash_sources, package_folder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = tmp_path / "models"
    (source / "sub").mkdir(parents=True)
    (source / "a.py").write_text("x = 1\n")
    (source / "sub" / "b.yaml").write_text("x: 1\n")
    return source


def test_every_source_counts(folder: Path) -> None:
    before = hash_sources({"models": folder})
    (folder / "sub" / "b.yaml").write_text("x: 2\n")
    edited = hash_sources({"models": folder})
    (folder / "a.py").rename(folder / "c.py")
    renamed = hash_sources({"models": folder})
    assert len({before, edited, renamed, hash_sources({"conf": folder})}) == 4


def test_other_files_do_not_count(folder: Path) -> None:
    """Compiled files, tests, notes and hidden folders are not in a Flower app bundle either."""
    before = hash_sources({"models": folder})
    for name in ("a.pyc", "notes.md", "test_a.py", "a_test.py", ".hidden/x.py"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x = 2\n")
    assert hash_sources({"models": folder}) == before


def test_where_a_package_lies_does_not_matter(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert hash_sources({"models": folder}) == hash_sources({"models": tmp_path / "elsewhere"})


def test_fingerprint_of_this_checkout() -> None:
    assert code_fingerprint() == hash_sources({name: ROOT / name for name in PACKAGES})


def test_an_unknown_package() -> None:
    with pytest.raises(ModuleNotFoundError, match="'no_such_package' of this application"):
        package_folder("no_such_package")


def test_it_follows_the_folder_that_was_imported(tmp_path: Path) -> None:
    """One package from an edited second checkout, as a simulation worker may import it."""
    shutil.copytree(ROOT / "models", tmp_path / "models", ignore=shutil.ignore_patterns("__py*"))
    (tmp_path / "models" / "rng.py").write_text("SEED = 1\n")
    code = "import models; from conf.fingerprint import code_fingerprint as f; print(f())"
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, check=True
    )
    folders = {name: ROOT / name for name in PACKAGES} | {"models": tmp_path / "models"}
    assert run.stdout.strip() == hash_sources(folders) != code_fingerprint()
