"""The development authority, the server's certificate and keys of nodes."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from conf.build import ConfigError
from server_app.certificates import Certificates, make
from server_app.cli import run_command
from server_app.errors import StorageError


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return make(tmp_path / "keys", ["superlink.example.org", "10.0.0.7"], nodes=2, days=30)


def test_private_files_are_their_owners_alone(made: Certificates) -> None:
    folder = made.ca_certificate.parent
    assert folder.stat().st_mode & 0o777 == 0o700
    for path in (made.server_key, folder / "ca.key", *made.node_keys):
        assert path.stat().st_mode & 0o777 == 0o600


def test_the_mode_does_not_hang_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        loose = make(tmp_path / "keys", [], nodes=1, days=1)
    finally:
        os.umask(before)
    assert loose.server_key.stat().st_mode & 0o777 == 0o600


def test_the_authority_signed_the_servers_certificate(made: Certificates) -> None:
    ca = x509.load_pem_x509_certificate(made.ca_certificate.read_bytes())
    server = x509.load_pem_x509_certificate(made.server_certificate.read_bytes())
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"localhost", "superlink.example.org"}
    assert set(names.get_values_for_type(x509.IPAddress)) == {
        ipaddress.ip_address(text) for text in ("127.0.0.1", "::1", "10.0.0.7")
    }
    left = server.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=29) < left <= datetime.timedelta(days=30)
    for certificate, is_ca in ((ca, True), (server, False)):
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        assert basic.ca is is_ca


def test_the_key_is_the_certificates(made: Certificates) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server_certificate, made.server_key)
    ssl.create_default_context(cafile=str(made.ca_certificate))


def test_node_keys_are_what_flower_reads(made: Certificates) -> None:
    for path in made.node_keys:
        private = load_ssh_private_key(path.read_bytes(), None)
        public = load_ssh_public_key(path.with_name(path.name + ".pub").read_bytes())
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        assert isinstance(public, ec.EllipticCurvePublicKey)
        assert private.public_key() == public
    assert len({path.read_bytes() for path in made.node_keys}) == 2


def test_what_is_there_stays_and_what_is_missing_is_made(made: Certificates) -> None:
    folder = made.ca_certificate.parent
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    more = make(folder, [], nodes=3, days=30)
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert [path.name for path in more.node_keys] == ["node-000", "node-001", "node-002"]


def test_a_half_made_authority_is_made_anew(made: Certificates) -> None:
    """The authority's certificate is written last: without it the others do not count."""
    made.ca_certificate.unlink()
    again = make(made.ca_certificate.parent, [], nodes=2, days=30)
    ca = x509.load_pem_x509_certificate(again.ca_certificate.read_bytes())
    server = x509.load_pem_x509_certificate(again.server_certificate.read_bytes())
    server.verify_directly_issued_by(ca)


def test_another_name_needs_another_folder(made: Certificates) -> None:
    with pytest.raises(ConfigError, match=r"holds for other\.example\.org too"):
        make(made.ca_certificate.parent, ["other.example.org"], nodes=2, days=30)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        make(tmp_path / "file" / "keys", [], nodes=1, days=1)


def test_the_command_says_what_is_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "keys"
    assert run_command(["certificates", "--out", str(out), "--nodes", "1", "--host", "a.b"]) == 0
    shown = capsys.readouterr().out
    assert f"SuperNode key: {out / 'node-000'}" in shown
    assert run_command(["certificates", "--out", str(out), "--host", "c.d"]) == 2
    assert "choose another folder" in capsys.readouterr().err
