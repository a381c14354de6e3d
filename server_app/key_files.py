"""Keys in files: made once, never replaced, private ones their owner's from the first byte."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)

from conf.build import ConfigError
from server_app.files import named

CURVE = ec.SECP384R1()
"""The curve that Flower's documentation has for SuperNode keys; it accepts NIST curves only."""
PRIVATE, PUBLIC = 0o600, 0o644


def write_new(path: Path, data: bytes, mode: int) -> None:
    """Write a file whole or not at all.

    Raises:
        FileExistsError: where there is one already.

    """
    # Made with O_EXCL and mode 0600, then linked: a link never replaces a file.
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with named(path), os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        with named(path):
            os.link(name, path)
    finally:
        Path(name).unlink()


def pem_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Key of a certificate: the one in ``path``, else a new one that is written there.

    Raises:
        ConfigError: for a file that holds no such key.

    """
    if not path.exists():
        made = ec.generate_private_key(CURVE)
        write_new(
            path, made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), PRIVATE
        )
        return made
    try:
        return _elliptic(load_pem_private_key(path.read_bytes(), None))
    except (TypeError, ValueError):
        raise ConfigError(f"{path} is not a private key on an elliptic curve") from None


def make_node_key(path: Path) -> None:
    """Key pair of a SuperNode in OpenSSH's format: ``path`` and ``path.pub``.

    A public key whose private one is gone stays: that one was taken to its node.

    Raises:
        ConfigError: for a private key that cannot be read, where the public one is missing.

    """
    public = path.with_name(path.name + ".pub")
    if public.exists():
        return
    if not path.exists():
        key = ec.generate_private_key(CURVE)
        write_new(
            path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), PRIVATE
        )
    try:
        key = _elliptic(load_ssh_private_key(path.read_bytes(), None))
    except (TypeError, ValueError):
        raise ConfigError(f"{path} is not a private key as ssh-keygen -t ecdsa makes it") from None
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_new(public, line + b" " + path.name.encode() + b"\n", PUBLIC)


def _elliptic(key: object) -> ec.EllipticCurvePrivateKey:
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError
    return key
