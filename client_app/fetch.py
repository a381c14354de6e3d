"""Obtains MovieLens-100K: cache, installed RecBole, RecBole's wheel, GroupLens; all verified.

The data may not be redistributed (GroupLens's terms), so it is fetched where it is used.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from client_app.cache import Cache, write_atomically
from client_app.errors import DataError

REQUIREMENT = "recbole==1.2.1"
FOLDER = "recbole/dataset_example/ml-100k"
HOME = "https://files.grouplens.org/datasets/movielens/ml-100k.zip"
INTER_HEADER = b"user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
ITEM_HEADER = "item_id:token\tmovie_title:token_seq\n"
PIP_TIMEOUT_S, DOWNLOAD_TIMEOUT_S = 180, 60


@dataclass(frozen=True)
class Content:
    """``ml-100k.inter``, and ``ml-100k.item`` with the titles where the source has it."""

    inter: bytes
    item: bytes | None


@dataclass(frozen=True)
class Hashes:
    """sha256 of the interactions, and of RecBole's titles."""

    inter: str
    item: str


ML_100K = Hashes(
    inter="4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
    item="51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532",
)


class NotHere(Exception):  # noqa: N818 (the next source is tried: no error yet)
    """A source does not have the data; the text says why."""


def fetch_movielens(cache: Cache, hashes: Hashes = ML_100K) -> tuple[Path, Path | None]:
    """Paths of ``ml-100k.inter`` and, where known, ``ml-100k.item`` in the cache.

    Raises:
        DataError: when every source failed; the line says what was tried and why it failed.

    """
    folder = cache.root / "downloads" / "ml-100k"
    inter, item = folder / "ml-100k.inter", folder / "ml-100k.item"
    if not _is(inter, hashes.inter, cache):
        with cache.lock("ml-100k"):
            if not _is(inter, hashes.inter, cache):
                content = _first(SOURCES, hashes)
                if content.item is not None:
                    write_atomically(item, content.item)
                write_atomically(inter, content.inter)
    return inter, item if item.is_file() else None


def from_installed() -> Content:
    """The files of the RecBole that is installed here, which is not imported."""
    try:
        distribution = importlib.metadata.distribution("recbole")
    except importlib.metadata.PackageNotFoundError:
        raise NotHere("recbole is not installed") from None
    paths = [
        Path(str(distribution.locate_file(f"{FOLDER}/ml-100k.{s}"))) for s in ("inter", "item")
    ]
    if not paths[0].is_file():
        raise NotHere(f"recbole {distribution.version} has no {FOLDER}/ml-100k.inter")
    return Content(paths[0].read_bytes(), paths[1].read_bytes() if paths[1].is_file() else None)


def from_wheel() -> Content:
    """The files of the wheel that pip downloads."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", REQUIREMENT, "--no-deps"]
        options = ["--only-binary=:all:", "--disable-pip-version-check", "-q", "-d", folder]
        try:
            done = subprocess.run(
                command + options,
                capture_output=True,
                text=True,
                timeout=PIP_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NotHere(f"pip download {REQUIREMENT} took over {PIP_TIMEOUT_S} s") from None
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            last = done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}"
            raise NotHere(f"pip download {REQUIREMENT}: {last}")
        return from_archive(wheels[0])


def from_archive(wheel: Path) -> Content:
    """The files of a wheel on disk."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        inter, item = (f"{FOLDER}/ml-100k.{suffix}" for suffix in ("inter", "item"))
        if inter not in names:
            raise NotHere(f"{wheel.name} has no {inter}")
        return Content(archive.read(inter), archive.read(item) if item in names else None)


def from_home() -> Content:
    """GroupLens's own archive, its ``u.data`` and ``u.item`` as RecBole's files."""
    with urllib.request.urlopen(HOME, timeout=DOWNLOAD_TIMEOUT_S) as reply:
        return from_movielens_zip(reply.read())


def from_movielens_zip(packed: bytes) -> Content:
    """The content of ``ml-100k.zip`` with RecBole's typed headers."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        try:
            data = archive.read("ml-100k/u.data")
            films = archive.read("ml-100k/u.item").decode("latin-1").splitlines()
        except KeyError as error:
            raise NotHere(f"{HOME}: {error.args[0]}") from None
    titles = ["\t".join(film.split("|")[:2]) for film in films if film]
    return Content(INTER_HEADER + data, (ITEM_HEADER + "\n".join(titles) + "\n").encode())


Source = tuple[str, Callable[[], Content]]
SOURCES: tuple[Source, ...] = (
    ("installed recbole", from_installed),
    (f"wheel of {REQUIREMENT}", from_wheel),
    ("GroupLens", from_home),
)


def _first(sources: tuple[Source, ...], hashes: Hashes) -> Content:
    """Content of the first source that has the right bytes."""
    failures = []
    for name, read in sources:
        try:
            content = read()
        except (NotHere, OSError, zipfile.BadZipFile, subprocess.SubprocessError) as error:
            failures.append(f"{name}: {error}")
            continue
        digest = hashlib.sha256(content.inter).hexdigest()
        if digest == hashes.inter:
            return _with_known_titles(content, hashes, name)
        failures.append(f"{name}: sha256 is {digest}, not {hashes.inter}")
    tried = " | ".join(" ".join(failure.split()) for failure in failures)
    raise DataError(
        f"MovieLens-100K could not be obtained ({tried}); pip install --no-deps {REQUIREMENT}, "
        "or give a copy: dataset.path=/path/to/ml-100k.inter or u.data"
    )


def _with_known_titles(content: Content, hashes: Hashes, name: str) -> Content:
    """Titles are taken as they are from GroupLens, whose ratings were verified beside them."""
    if content.item is None or name == "GroupLens":
        return content
    known = hashlib.sha256(content.item).hexdigest() == hashes.item
    return content if known else Content(content.inter, None)


def _is(path: Path, sha256: str, cache: Cache) -> bool:
    return path.is_file() and cache.digest(str(path)) == sha256
