"""Bytes and text of a data file: plain, ``.gz``, or a member of one (``archive.zip:member``)."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from pathlib import Path

from client_app.errors import DataError

ARCHIVE = ".zip:"
NAMED_MEMBERS = 5


def file_on_disk(path: str) -> Path:
    """The file behind ``path``: the archive when it names a member of one."""
    before, mark, _ = path.partition(ARCHIVE)
    return Path(before + ".zip") if mark else Path(path)


def read_bytes(path: str) -> bytes:
    """Unpacked content of the file or archive member.

    Raises:
        DataError: missing, unreadable or damaged file; absent archive member; an archive of
            which no member is named.

    """
    try:
        return _read(path)
    except FileNotFoundError:
        raise DataError(f"{file_on_disk(path)}: no such file") from None
    except KeyError:
        member = path.partition(ARCHIVE)[2]
        raise DataError(
            f"{file_on_disk(path)}: no member {member!r} in the archive; {_members(path)}"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        raise DataError(f"{file_on_disk(path)}: damaged archive: {error}") from None
    except OSError as error:
        raise DataError(f"{file_on_disk(path)}: cannot be read: {error.strerror}") from None


def _read(path: str) -> bytes:
    file, member = file_on_disk(path), path.partition(ARCHIVE)[2]
    if member:
        with zipfile.ZipFile(file) as archive:
            return archive.read(member)
    if file.suffix == ".zip":
        raise DataError(f"{file}: name a member of the archive; {_members(path)}")
    if file.suffix == ".gz":
        return gzip.decompress(file.read_bytes())
    return file.read_bytes()


def _members(path: str) -> str:
    """The archive's files, each as it is to be given."""
    file = file_on_disk(path)
    with zipfile.ZipFile(file) as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
    if not names:
        return "it is empty"
    more = f" and {len(names) - NAMED_MEMBERS} more" if len(names) > NAMED_MEMBERS else ""
    return f"it has {', '.join(f'{file}:{name}' for name in names[:NAMED_MEMBERS])}{more}"


def decode(raw: bytes, encoding: str, path: str) -> str:
    """Text of ``raw`` with a byte order mark removed.

    Raises:
        DataError: with file and line for bytes that are not in ``encoding`` or not text.

    """
    try:
        text = raw.decode(encoding).removeprefix("\ufeff")
    except LookupError:
        raise DataError(f"dataset.encoding: unknown encoding {encoding!r}") from None
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DataError(f"{path}:{line}: not {encoding} text; set dataset.encoding") from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise DataError(f"{path}:{line}: a NUL byte: not a text file, or another encoding")
    return text
