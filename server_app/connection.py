"""A SuperLink as others reach it: address and, with TLS, the certificate that signed it."""

from __future__ import annotations

import hashlib
import json
import ssl
from dataclasses import dataclass
from pathlib import Path

import httpx

from conf.build import ConfigError


@dataclass(frozen=True)
class Connection:
    """``HOST:PORT`` of a SuperLink; without a root certificate it is spoken to in the clear."""

    address: str
    root_certificates: Path | None = None

    @classmethod
    def checked(cls, address: str, root_certificates: str | None) -> Connection:
        """A connection as typed by a person.

        Raises:
            ConfigError: for an address without a port, or a certificate that is not there.

        """
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(f"--superlink must be HOST:PORT, got {address!r}")
        if root_certificates is None:
            return cls(address)
        path = Path(root_certificates).expanduser().absolute()
        if not path.is_file():
            raise ConfigError(f"--root-certificates: there is no file {path}")
        return cls(address, path)

    @property
    def config(self) -> str:
        """Flower's ``config.toml`` with this connection as the default."""
        security = (
            "insecure = true"
            if self.root_certificates is None
            else f"root-certificates = {json.dumps(str(self.root_certificates))}"
        )
        return (
            '[superlink]\ndefault = "local"\n\n[superlink.local]\n'
            f"address = {json.dumps(self.address)}\n{security}\n"
        )

    @property
    def options(self) -> list[str]:
        """What ``fedrecgel run`` is told to reach it."""
        roots = self.root_certificates
        secure = [] if roots is None else ["--root-certificates", str(roots)]
        return ["--superlink", self.address, *secure]

    @property
    def key(self) -> str:
        """Short name of this connection for a folder."""
        return hashlib.sha256(self.config.encode()).hexdigest()[:12]

    def is_healthy(self) -> bool:
        """Whether the SuperLink answers."""
        roots = self.root_certificates
        scheme = "http" if roots is None else "https"
        try:
            trust = roots is None or ssl.create_default_context(cafile=str(roots))
            answer = httpx.get(f"{scheme}://{self.address}/health", timeout=2.0, verify=trust)
        except (httpx.HTTPError, OSError):
            return False
        return answer.is_success
