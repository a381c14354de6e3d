"""A development certificate authority, a server's certificate and keys of SuperNodes.

For trying TLS and SuperNode authentication. In production an organisation's own authority
signs the server's certificate, and each node makes its key on its own machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from conf.build import ConfigError
from server_app.authority import (
    authority_certificate,
    host_name,
    missing_hosts,
    server_certificate,
)
from server_app.errors import StorageError
from server_app.key_files import PUBLIC, make_node_key, pem_key, write_new

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "server.pem", "server.key"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
FOLDER = 0o700


@dataclass(frozen=True)
class Certificates:
    """Where they lie."""

    ca_certificate: Path
    """What SuperNodes and ``fedrecgel run`` are given as ``--root-certificates``."""
    server_certificate: Path
    server_key: Path
    node_keys: tuple[Path, ...]
    """Private keys of SuperNodes in OpenSSH's format; the public one is beside each (.pub).
    A private key that was taken to its node is not there any more."""


def make(folder: Path, hosts: Sequence[str], nodes: int, days: int) -> Certificates:
    """Make what is missing in ``folder``; what is there already stays.

    ``hosts``: names and addresses of the server beside the local ones. ``days``: how long new
    certificates are valid. Private keys are readable by their owner alone from the first byte.

    Raises:
        ConfigError: for a host that is none, or that the server's certificate which is there
            does not hold for; for files in the folder that do not fit together.
        StorageError: when a file cannot be read or written.

    """
    for host in hosts:
        host_name(host)
    width = max(3, len(str(max(0, nodes - 1))))
    keys = [folder / f"node-{index:0{width}d}" for index in range(nodes)]
    try:
        folder.mkdir(mode=FOLDER, parents=True, exist_ok=True)
        folder.chmod(FOLDER)
        _make_authority(folder, days)
        _make_server(folder, hosts, days)
        for key in keys:
            make_node_key(key)
    except OSError as error:
        raise StorageError(f"{error.filename or folder}: {error.strerror}") from None
    return Certificates(
        folder / CA_CERTIFICATE, folder / SERVER_CERTIFICATE, folder / SERVER_KEY, tuple(keys)
    )


def read_certificate(path: Path) -> x509.Certificate:
    """Certificate in a PEM file.

    Raises:
        ConfigError: for a file that holds none.

    """
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise ConfigError(f"{path} is not a certificate") from None


def _make_authority(folder: Path, days: int) -> None:
    path = folder / CA_CERTIFICATE
    if path.exists():
        return
    if (folder / SERVER_CERTIFICATE).exists() and not (folder / CA_KEY).exists():
        raise ConfigError(f"{folder} has {SERVER_CERTIFICATE} without {CA_CERTIFICATE}, its CA's")
    made = authority_certificate(pem_key(folder / CA_KEY), days)
    write_new(path, made.public_bytes(Encoding.PEM), PUBLIC)


def _make_server(folder: Path, hosts: Sequence[str], days: int) -> None:
    path = folder / SERVER_CERTIFICATE
    if path.exists():
        _check_hosts(path, hosts)
        return
    if not (folder / CA_KEY).exists():
        raise ConfigError(f"{folder / CA_KEY} is missing: without it no certificate can be signed")
    authority, authority_key = read_certificate(folder / CA_CERTIFICATE), pem_key(folder / CA_KEY)
    if authority.public_key() != authority_key.public_key():
        raise ConfigError(f"{folder / CA_KEY} is not the key of {CA_CERTIFICATE}")
    names = list(dict.fromkeys([*LOCAL_HOSTS, *hosts]))
    key = pem_key(folder / SERVER_KEY).public_key()
    made = server_certificate(key, authority, authority_key, names, days)
    write_new(path, made.public_bytes(Encoding.PEM), PUBLIC)


def _check_hosts(path: Path, hosts: Sequence[str]) -> None:
    missing = missing_hosts(read_certificate(path), hosts)
    if missing:
        raise ConfigError(
            f"{path} is there already: remove it for one by the same CA that "
            f"holds for {', '.join(missing)} too, or choose another folder"
        )
