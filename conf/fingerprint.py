"""A hash of the application's own sources, to catch a node that runs other code.

Simulation workers can import packages of the same name from another folder than the
application's (the folder where the local SuperLink was first started), so the hash is over
the files of the packages as they were really imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

PACKAGES = ("models", "strategies", "client_app", "server_app", "conf")
SUFFIXES = frozenset({".py", ".yaml"})


@cache
def code_fingerprint() -> str:
    """Hash of every ``.py`` and ``.yaml`` of the five packages, computed once a process.

    Raises:
        ModuleNotFoundError: naming the package that cannot be found.

    """
    return hash_sources({name: package_folder(name) for name in PACKAGES})


def package_folder(name: str) -> Path:
    """Folder that the package was imported from, or would be."""
    module = sys.modules.get(name)
    spec = module.__spec__ if module is not None else importlib.util.find_spec(name)
    locations = [] if spec is None else list(spec.submodule_search_locations or ())
    if not locations:
        raise ModuleNotFoundError(f"package {name!r} of this application is not importable")
    return Path(locations[0])


def hash_sources(folders: dict[str, Path]) -> str:
    """Hash over package name, relative path and bytes of each source file, in sorted order."""
    digest = hashlib.sha256()
    for name, folder in sorted(folders.items()):
        for path in _sources(folder):
            content = path.read_bytes()
            digest.update(f"{name}/{path.relative_to(folder).as_posix()}\0".encode())
            digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def _sources(folder: Path) -> Iterable[Path]:
    # A Flower app bundle leaves test files and hidden folders out; so must the hash.
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        test = path.name.startswith("test_") or path.name.endswith("_test.py")
        if path.suffix in SUFFIXES and not hidden and not test and path.is_file():
            yield path
