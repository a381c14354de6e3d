"""The development authority, the server's certificate and keys of nodes."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import ssl
from pathlib import Path
from typing import IO, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from conf.build import ConfigError
from server_app.authority import missing_hosts
from server_app.certificates import Certificates, make
from server_app.cli import run_command
from server_app.errors import StorageError
from server_app.key_files import write_new


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


@pytest.mark.parametrize("gone", ["ca.crt", "server.pem"])
def test_what_a_broken_off_call_left_out_is_made_by_the_same_keys(
    made: Certificates, gone: str
) -> None:
    folder = made.ca_certificate.parent
    (folder / gone).unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    again = make(folder, [], nodes=2, days=30)
    assert {name: (folder / name).read_bytes() for name in before} == before
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


def test_a_key_that_was_taken_to_its_node_keeps_its_public_half(made: Certificates) -> None:
    """The public half is what the SuperLink has registered: a new pair would not be let in."""
    private, public = made.node_keys[0], made.node_keys[0].with_name("node-000.pub")
    before = public.read_bytes()
    private.unlink()
    make(private.parent, [], nodes=2, days=30)
    assert public.read_bytes() == before
    assert not private.exists()


def test_a_missing_public_half_is_derived(made: Certificates) -> None:
    public = made.node_keys[1].with_name("node-001.pub")
    before = public.read_bytes()
    public.unlink()
    make(public.parent, [], nodes=2, days=30)
    assert public.read_bytes() == before


def test_the_same_hosts_again_are_fine(made: Certificates) -> None:
    before = made.server_certificate.read_bytes()
    make(made.ca_certificate.parent, ["10.0.0.7", "SUPERLINK.example.org"], nodes=2, days=30)
    assert made.server_certificate.read_bytes() == before


def test_the_server_certificate_can_be_renewed(made: Certificates) -> None:
    """For another name, by the same authority, and never for longer than that holds."""
    made.server_certificate.unlink()
    make(made.ca_certificate.parent, ["new.example.org"], nodes=2, days=90)
    ca, server = (
        x509.load_pem_x509_certificate(path.read_bytes())
        for path in (made.ca_certificate, made.server_certificate)
    )
    server.verify_directly_issued_by(ca)
    assert missing_hosts(server, ["new.example.org", "10.0.0.7"]) == ["10.0.0.7"]
    assert server.not_valid_after_utc == ca.not_valid_after_utc


@pytest.mark.parametrize(
    "host", ["", "a b", "host:8000", "-a.example.org", "a..b", "b\u00fccher.example", "300.1.1.1"]
)
def test_what_is_no_host_is_refused_before_anything_is_made(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="neither a host name nor an IP address"):
        make(tmp_path / "keys", [host], nodes=1, days=30)
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize(
    ("name", "content", "gone"),
    [
        ("server.key", b"not a key", ("server.pem",)),
        ("ca.key", b"not a key", ("ca.crt",)),
        ("ca.crt", b"not a certificate", ("server.pem",)),
        ("node-000", b"not a key", ("node-000.pub",)),
    ],
)
def test_files_of_others_are_named_and_stay(
    made: Certificates, name: str, content: bytes, gone: tuple[str, ...]
) -> None:
    folder = made.ca_certificate.parent
    for other in gone:
        (folder / other).unlink()
    (folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(str(folder / name))):
        make(folder, [], nodes=2, days=30)
    assert (folder / name).read_bytes() == content


def test_an_authority_of_another_key_signs_nothing(made: Certificates, tmp_path: Path) -> None:
    folder = made.ca_certificate.parent
    other = make(tmp_path / "other", [], nodes=0, days=30)
    made.server_certificate.unlink()
    made.ca_certificate.write_bytes(other.ca_certificate.read_bytes())
    with pytest.raises(ConfigError, match=r"ca\.key is not the key of ca\.crt"):
        make(folder, [], nodes=2, days=30)
    (folder / "ca.key").unlink()
    with pytest.raises(ConfigError, match=r"ca\.key is missing"):
        make(folder, [], nodes=2, days=30)
    assert not made.server_certificate.exists()


def test_a_certificate_without_its_authority_is_not_adopted(made: Certificates) -> None:
    made.ca_certificate.unlink()
    (made.ca_certificate.parent / "ca.key").unlink()
    with pytest.raises(ConfigError, match=r"server\.pem without ca\.crt"):
        make(made.ca_certificate.parent, [], nodes=2, days=30)


def test_new_files_replace_nothing_and_leave_nothing(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"old")
    with pytest.raises(FileExistsError):
        write_new(path, b"new", 0o600)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_is_private_before_its_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    sync = os.fsync

    def seen(descriptor: int) -> None:
        modes.append(os.fstat(descriptor).st_mode & 0o777)
        sync(descriptor)

    opened: list[int] = []
    fdopen = os.fdopen

    def opening(descriptor: int, mode: str) -> IO[bytes]:
        status = os.fstat(descriptor)
        opened.append(status.st_mode & 0o777)
        assert status.st_size == 0
        return cast("IO[bytes]", fdopen(descriptor, mode))

    monkeypatch.setattr(os, "fsync", seen)
    monkeypatch.setattr(os, "fdopen", opening)
    umask = os.umask(0)
    try:
        write_new(tmp_path / "key", b"secret", 0o600)
    finally:
        os.umask(umask)
    assert opened == [0o600]
    assert modes == [0o600]


def test_days_are_counted_in_reason(tmp_path: Path) -> None:
    for days in (0, 10**7):
        with pytest.raises(ConfigError, match=f"days: {days} is not between"):
            make(tmp_path / "keys", [], nodes=0, days=days)
