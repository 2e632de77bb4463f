"""Where NATS is, and by what it knows us; what is secret is in no text of ours.

Rule 1: only the addresses that the operator wrote are used. What servers say of each other may be
        true only inside their own network, and costs a wait for each that is not.
Rule 2: `tls://` means that nothing, credentials least of all, goes over it unencrypted.
Rule 3: a server beyond loopback is used without a login only where the operator allows that.
"""

import ipaddress
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import SplitResult, unquote, urlsplit

from comity.adapters.nats.credentials import Credentials
from comity.wire.errors import Misconfigured

_PORT: Final = 4222
_SCHEMES: Final = ("nats", "tls")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Server:
    """One server; a user without a password is a token."""

    host: str
    port: int
    is_encrypted: bool
    user: str = field(default="", repr=False)
    password: str | None = field(default=None, repr=False)

    @property
    def is_open(self) -> bool:
        """Whether other machines may be able to use it without a login."""
        return not self.user and not _is_loopback(self.host)

    @property
    def url(self) -> str:
        """Without what may be a secret."""
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
class Addresses:
    """All that is needed to reach NATS."""

    servers: tuple[Server, ...]
    deployment: str = "comity"
    """Those of one name are one cluster; others may use the same NATS beside it."""
    credentials: Credentials | None = None
    encryption: ssl.SSLContext | None = field(default=None, repr=False)

    @property
    def replicas(self) -> int:
        """How often JetStream keeps what must last: three times, where that many servers are."""
        return 3 if len(self.servers) >= 3 else 1

    @classmethod
    def of(
        cls,
        urls: Sequence[str],
        deployment: str = "comity",
        credentials_file: Path | None = None,
        authority_file: Path | None = None,
    ) -> Self:
        """Raises Misconfigured; files are read, and nothing is connected to."""
        servers = [Server.of(url) for text in urls for url in text.split(",") if url.strip()]
        if not servers:
            raise _not_an_address()
        if not _NAME.fullmatch(deployment):
            raise Misconfigured(
                "the name of a deployment is 1 to 64 of the letters A-Z and a-z, digits, _ and -"
            )
        credentials = None if credentials_file is None else Credentials(credentials_file)
        encryption = _encryption(authority_file) if any(s.is_encrypted for s in servers) else None
        return cls(tuple(servers), deployment, credentials, encryption)

    def refuse_open_servers(self) -> None:
        """Raise Misconfigured where a server beyond this machine asks for no login."""
        servers = [] if self.credentials else [each.url for each in self.servers if each.is_open]
        if servers:
            raise Misconfigured(
                f"NATS at {', '.join(servers)} is used without a login, so others could use it too:"
                " write user:password@ or token@ before the host, or name a credentials_file in"
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
    """Says nothing of what was written, which may hold a password."""
    return Misconfigured(
        "an address of NATS reads nats://host:4222, or tls://host:4222 with encryption,"
        " with user:password@ or token@ before the host where NATS asks for that"
    )
