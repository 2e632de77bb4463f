"""Addresses of NATS servers, and the credentials for them."""

import base64
import binascii
import ipaddress
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import SplitResult, unquote, urlsplit

from comity.config.secret_files import read_secret
from comity.errors import Misconfigured

_SEED: Final = re.compile(rb"^(SU[A-Z2-7]{56})\s*$", re.MULTILINE)
_TOKEN: Final = re.compile(
    rb"-----BEGIN NATS USER JWT-----\s+([A-Za-z0-9_.=-]+)\s+------END NATS USER JWT------"
)
_USER: Final = 20 << 3


class NatsCredentials:
    """The login from a NATS credentials file. An unusable file raises Misconfigured."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.public_key()

    def __repr__(self) -> str:
        return f"<credentials in {self._file}>"

    def token(self) -> bytes | None:
        """Return the JWT, if the file has one."""
        found = _TOKEN.search(self._text())
        return None if found is None else found[1]

    def public_key(self) -> str:
        public = self._key().public_key().public_bytes_raw()
        body = bytes([_USER]) + public
        check = binascii.crc_hqx(body, 0).to_bytes(2, "little")
        return base64.b32encode(body + check).rstrip(b"=").decode()

    def signature(self, nonce: str) -> bytes:
        return base64.b64encode(self._key().sign(nonce.encode()))

    def _key(self) -> Any:
        # This import is slow, and every command reads settings, which parse addresses.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        found = _SEED.search(self._text())
        if found is None:
            raise self._useless()
        padded = found[1] + b"=" * (-len(found[1]) % 8)
        raw = base64.b32decode(padded)
        if binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
            raise self._useless()
        return Ed25519PrivateKey.from_private_bytes(raw[2:34])

    def _text(self) -> bytes:
        try:
            return read_secret(self._file, "credentials", may_be_shared=True)
        except Misconfigured:
            raise self._useless() from None

    def _useless(self) -> Misconfigured:
        return Misconfigured(
            f"{self._file} holds no readable seed of a NATS user (it begins with SU). Name the"
            " .creds file of `nsc generate creds`, or a file with the seed alone"
        )


_PORT: Final = 4222
_SCHEMES: Final = ("nats", "tls")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class NatsServerAddress:
    """The address of one NATS server. A user without a password is a token."""

    host: str
    port: int
    is_encrypted: bool
    user: str = field(default="", repr=False)
    password: str | None = field(default=None, repr=False)

    @property
    def is_open(self) -> bool:
        """Whether other machines may be able to use the server without a login."""
        return not self.user and not _is_loopback(self.host)

    @property
    def url(self) -> str:
        """The URL without its secrets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.is_encrypted else 'nats'}://{host}:{self.port}"

    @classmethod
    def of(cls, url: str) -> Self:
        try:
            parts = urlsplit(url.strip())
            port = parts.port or _PORT
        except ValueError:
            raise _not_an_address() from None
        if parts.scheme not in _SCHEMES or not parts.hostname or _has_more(parts):
            raise _not_an_address()
        password = None if parts.password is None else unquote(parts.password)
        user = unquote(parts.username or "")
        return cls(parts.hostname, port, parts.scheme == "tls", user, password)


@dataclass(frozen=True, slots=True)
class NatsAddressList:
    """The addresses of all NATS servers, and the login and TLS settings."""

    servers: tuple[NatsServerAddress, ...]
    deployment: str = "comity"
    """Nodes with the same name form one cluster. Other clusters may share the NATS servers."""
    credentials: NatsCredentials | None = None
    encryption: ssl.SSLContext | None = field(default=None, repr=False)

    @property
    def replicas(self) -> int:
        """How many replicas JetStream keeps: three, if there are that many servers."""
        return 3 if len(self.servers) >= 3 else 1

    @classmethod
    def of(
        cls,
        urls: Sequence[str],
        deployment: str = "comity",
        credentials_file: Path | None = None,
        authority_file: Path | None = None,
    ) -> Self:
        """Parse the addresses and read the files, without connecting. Raises Misconfigured."""
        servers = [
            NatsServerAddress.of(url) for text in urls for url in text.split(",") if url.strip()
        ]
        if not servers:
            raise _not_an_address()
        if not _NAME.fullmatch(deployment):
            raise Misconfigured(
                "the name of a deployment is 1 to 64 of the letters A-Z and a-z, digits, _ and -"
            )
        credentials = None if credentials_file is None else NatsCredentials(credentials_file)
        encryption = _encryption(authority_file) if any(s.is_encrypted for s in servers) else None
        return cls(tuple(servers), deployment, credentials, encryption)

    def refuse_open_servers(self) -> None:
        """Raise Misconfigured if a server beyond this machine needs no login."""
        servers = [] if self.credentials else [each.url for each in self.servers if each.is_open]
        if servers:
            raise Misconfigured(
                f"NATS at {', '.join(servers)} is used without a login, so others could use it too."
                " Write user:password@ or token@ before the host, or name a credentials_file in"
                " [cluster]. If only the nodes can reach it, set allow_open_nats = true in"
                " [cluster]"
            )

    @property
    def described(self) -> str:
        return ", ".join(server.url for server in self.servers)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _has_more(parts: SplitResult) -> bool:
    return parts.path not in ("", "/") or bool(parts.query) or bool(parts.fragment)


def _encryption(authority_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authority_file)
    except (OSError, ssl.SSLError):
        raise Misconfigured(
            f"{authority_file} holds no certificate of an authority: name a PEM file we may read"
        ) from None


def _not_an_address() -> Misconfigured:
    """Return an error that does not quote the address, which may hold a password."""
    return Misconfigured(
        "an address of NATS reads nats://host:4222, or tls://host:4222 with encryption,"
        " with user:password@ or token@ before the host if NATS requires it"
    )
