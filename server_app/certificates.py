"""A development certificate authority, a server's certificate and keys of SuperNodes.

For trying TLS and SuperNode authentication. In production an organisation's own authority
signs the server's certificate, and each node makes its key on its own machine.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from conf.build import ConfigError
from server_app.errors import StorageError

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "server.pem", "server.key"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
CURVE = ec.SECP384R1()
"""The curve that Flower's documentation has for SuperNode keys; it accepts NIST curves only."""
PRIVATE, FOLDER = 0o600, 0o700
CLOCK_SKEW = datetime.timedelta(minutes=5)


@dataclass(frozen=True)
class Certificates:
    """Where they lie."""

    ca_certificate: Path
    """What SuperNodes and ``fedrecgel run`` are given as ``--root-certificates``."""
    server_certificate: Path
    server_key: Path
    node_keys: tuple[Path, ...]
    """Private keys of SuperNodes in OpenSSH's format; the public one is beside each (.pub)."""


def make(folder: Path, hosts: Sequence[str], nodes: int, days: int) -> Certificates:
    """Make what is missing in ``folder``; what is there already stays.

    ``hosts``: names and addresses of the server beside the local ones. Private keys are
    readable by their owner alone from the first byte.

    Raises:
        ConfigError: for further hosts where the server's certificate is there already.
        StorageError: when a file cannot be written.

    """
    try:
        folder.mkdir(mode=FOLDER, parents=True, exist_ok=True)
        folder.chmod(FOLDER)
        if not (folder / CA_CERTIFICATE).exists():
            _make_server(folder, [*LOCAL_HOSTS, *hosts], datetime.timedelta(days=days))
        elif hosts:
            raise ConfigError(
                f"{folder} has a server's certificate already: choose another folder for one "
                f"that holds for {', '.join(hosts)} too"
            )
        width = max(3, len(str(max(0, nodes - 1))))
        keys = [folder / f"node-{index:0{width}d}" for index in range(nodes)]
        for key in keys:
            if not key.exists():
                _make_node_key(key)
    except OSError as error:
        raise StorageError(f"{error.filename or folder}: {error.strerror}") from None
    return Certificates(
        folder / CA_CERTIFICATE, folder / SERVER_CERTIFICATE, folder / SERVER_KEY, tuple(keys)
    )


def _make_server(folder: Path, hosts: Sequence[str], valid: datetime.timedelta) -> None:
    """The authority's certificate is written last: where it is, the others are too."""
    ca_key, server_key = ec.generate_private_key(CURVE), ec.generate_private_key(CURVE)
    authority = _name("fedrecgel development CA")
    ca = _builder(authority, authority, ca_key.public_key(), valid)
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    ca = ca.add_extension(_usage(signs=True), critical=True)
    server = _builder(_name("fedrecgel SuperLink"), authority, server_key.public_key(), valid)
    names = x509.SubjectAlternativeName([_host(host) for host in dict.fromkeys(hosts)])
    server = server.add_extension(names, critical=False)
    server = server.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    server = server.add_extension(_usage(signs=False), critical=True)
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    server = server.add_extension(purpose, critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    server = server.add_extension(identifier, critical=False)
    _write(folder / CA_KEY, _pem(ca_key), PRIVATE)
    _write(folder / SERVER_KEY, _pem(server_key), PRIVATE)
    signed = server.sign(ca_key, hashes.SHA256())
    _write(folder / SERVER_CERTIFICATE, signed.public_bytes(Encoding.PEM), 0o644)
    own = ca.sign(ca_key, hashes.SHA256())
    _write(folder / CA_CERTIFICATE, own.public_bytes(Encoding.PEM), 0o644)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, valid: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + valid)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _make_node_key(path: Path) -> None:
    key = ec.generate_private_key(CURVE)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(path.with_name(path.name + ".pub"), public + b" " + path.name.encode() + b"\n", 0o644)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    _write(path, private, PRIVATE)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a file that is its owner's from the first byte; a leftover half is replaced."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
