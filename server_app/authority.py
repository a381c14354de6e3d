"""Certificates of a development authority and of the server that it signs for."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from conf.build import ConfigError

LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
CLOCK_SKEW = datetime.timedelta(minutes=5)
MAX_DAYS = 3650


def authority_certificate(key: ec.EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    """Certificate of an authority, signed by itself."""
    name = _name("fedrecgel development CA")
    builder = _builder(name, name, key.public_key(), _until(days))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    return builder.sign(key, hashes.SHA256())


def server_certificate(
    key: ec.EllipticCurvePublicKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    days: int,
) -> x509.Certificate:
    """Certificate of a server for ``hosts``; it does not outlive its authority's."""
    until = min(_until(days), authority.not_valid_after_utc)
    builder = _builder(_name("fedrecgel SuperLink"), authority.subject, key, until)
    names = x509.SubjectAlternativeName([host_name(host) for host in hosts])
    builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    builder = builder.add_extension(_usage(signs=False), critical=True)
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    builder = builder.add_extension(purpose, critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    return builder.sign(authority_key, hashes.SHA256())


def host_name(host: str) -> x509.GeneralName:
    """Entry of a certificate for a name or an address.

    Raises:
        ConfigError: for what is neither.

    """
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        labels = host.split(".")
    # A name that ends in a number is a mistyped address.
    if len(host) > 253 or not all(map(LABEL.fullmatch, labels)) or labels[-1].isdigit():
        raise ConfigError(f"host: {host!r} is neither a host name nor an IP address")
    return x509.DNSName(host.lower())


def missing_hosts(certificate: x509.Certificate, hosts: Sequence[str]) -> list[str]:
    """Those of ``hosts`` that ``certificate`` does not hold for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return list(hosts)
    return [host for host in hosts if host_name(host) not in list(found.value)]


def _until(days: int) -> datetime.datetime:
    if not 1 <= days <= MAX_DAYS:
        raise ConfigError(f"days: {days} is not between 1 and {MAX_DAYS}")
    # Certificates count in seconds.
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0) + datetime.timedelta(days)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, until: datetime.datetime
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    if until <= now:
        raise ConfigError(f"the CA's certificate ended on {until:%Y-%m-%d}: choose another folder")
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(until)
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
