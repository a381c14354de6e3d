"""Sources of MovieLens-100K: their order, their verification, and what is said when all fail.

Made-up content stands for the data, and its hashes for the real ones.
"""

from __future__ import annotations

import hashlib
import io
import sys
import urllib.request
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from client_app import fetch
from client_app.cache import Cache
from client_app.errors import DataError
from client_app.fetch import FOLDER, Hashes, fetch_movielens

DATA = b"1\t7\t5\t100\n"
INTER = fetch.INTER_HEADER + DATA
ITEM = b"item_id:token\tmovie_title:token_seq\n7\tA Film\n"
HASHES = Hashes(hashlib.sha256(INTER).hexdigest(), hashlib.sha256(ITEM).hexdigest())


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


# asked before a test hides the folder that pip is in; the fetcher runs it as a process
HAS_PIP = find_spec("pip") is not None


@pytest.fixture(autouse=True)
def nothing_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No installed RecBole, no package index and no network, unless a test provides them."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not (Path(p) / "recbole").exists()])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(empty))

    def unreachable(*_: object, **__: object) -> object:
        raise OSError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)


def wheel(folder: Path, inter: bytes = INTER, item: bytes | None = ITEM) -> Path:
    """A wheel that pip accepts, with the two files where RecBole has them."""
    path, info = folder / "recbole-1.2.1-py3-none-any.whl", "recbole-1.2.1.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{FOLDER}/ml-100k.inter", inter)
        if item is not None:
            archive.writestr(f"{FOLDER}/ml-100k.item", item)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: recbole\nVersion: 1.2.1\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def install(folder: Path, **content: bytes | None) -> str:
    """Unpack a wheel as an installed distribution; returns its entry for ``sys.path``."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel(folder, **content)) as archive:  # type: ignore[arg-type]
        archive.extractall(folder / "site")
    return str(folder / "site")


def movielens_zip() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("ml-100k/u.data", DATA)
        archive.writestr("ml-100k/u.item", "7|Léon (1994)|01-Jan-1994||x|0\n".encode("latin-1"))
    return packed.getvalue()


def test_installed_recbole_is_read_without_being_imported(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [install(tmp_path / "a"), *sys.path])
    inter, item = fetch_movielens(cache, HASHES)
    assert inter.read_bytes() == INTER
    assert item is not None
    assert item.read_bytes() == ITEM
    assert "recbole" not in sys.modules


@pytest.mark.skipif(not HAS_PIP, reason="this Python has no pip")
def test_wheel_comes_from_pip(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel(tmp_path).parent))
    inter, item = fetch_movielens(cache, HASHES)
    assert inter.read_bytes() == INTER
    assert item is not None


def test_last_source_is_the_data_sets_home(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(movielens_zip()))
    inter, item = fetch_movielens(cache, HASHES)
    assert inter.read_bytes() == INTER
    assert item is not None
    assert item.read_text("utf-8").splitlines()[1] == "7\tLéon (1994)"


def test_cache_is_asked_first_and_verified(cache: Cache, tmp_path: Path) -> None:
    folder = cache.root / "downloads" / "ml-100k"
    folder.mkdir(parents=True)
    (folder / "ml-100k.inter").write_bytes(INTER)
    assert fetch_movielens(cache, HASHES) == (folder / "ml-100k.inter", None)
    (folder / "ml-100k.inter").write_bytes(INTER + b"x")
    with pytest.raises(DataError, match="could not be obtained"):
        fetch_movielens(cache, HASHES)


def test_wrong_content_is_refused_and_the_next_source_is_tried(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [install(tmp_path / "a", inter=b"other"), *sys.path])
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(movielens_zip()))
    inter, _ = fetch_movielens(cache, HASHES)
    assert inter.read_bytes() == INTER


def test_unknown_titles_are_left_out(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [install(tmp_path / "a", item=b"other"), *sys.path])
    assert fetch_movielens(cache, HASHES)[1] is None


def test_one_line_says_what_was_tried_and_the_way_out(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [install(tmp_path / "a", inter=b"other"), *sys.path])
    with pytest.raises(DataError) as error:
        fetch_movielens(cache, HASHES)
    message = str(error.value)
    assert "\n" not in message
    wrong = hashlib.sha256(b"other").hexdigest()
    for part in (
        f"installed recbole: sha256 is {wrong}, not {HASHES.inter}",
        "wheel of recbole==1.2.1: pip download recbole==1.2.1:",
        "GroupLens: no network",
        "dataset.path=/path/to/ml-100k.inter",
    ):
        assert part in message
    assert not list(cache.root.glob("downloads/**/*.inter"))


def test_python_without_pip_falls_through(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(DataError, match="No such file or directory"):
        fetch_movielens(cache, HASHES)


def test_hashes_are_those_of_the_real_files(shared_data: Path) -> None:
    content = (shared_data / "ml_100k" / "ml-100k.inter").read_bytes()
    assert hashlib.sha256(content).hexdigest() == fetch.ML_100K.inter
    plain = (shared_data / "ml_100k" / "u.data").read_bytes()
    assert fetch.INTER_HEADER + plain == content
