"""Names of issuers that resolve to a public address when checked and to this machine later."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from comity.accounts.messages import IssuerMetadata, OAuthClientCredentials
from comity.accounts.oauth_client import OAuthHttpClient
from comity.errors import Unavailable
from comity.http.client.client import default_tls
from comity.http.client.pool import HttpConnectionPool

PUBLIC, SERVER = "93.184.215.14", "https://mcp.example.com/mcp"
PRIVATE = (
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",  # an address that must not be dialled
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "169.254.169.254",
    "100.64.0.1",
    "198.18.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fc00::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:a9fe:a9fe",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "2001:db8::1",
)


class Rebinding:
    """A resolver that gives a public and a private address by turns, and what was dialled."""

    def __init__(self, private: str, *, first: bool = True, mixed: bool = False) -> None:
        answers = ((PUBLIC,), (private,)) if first else ((private,), (PUBLIC,))
        self._answers = itertools.cycle(((PUBLIC, private),) if mixed else answers)
        self.asked = list[str]()
        self.dialled = list[str]()

    async def resolve(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        return next(self._answers)

    async def dial(self, make: Any, host: str, port: int, **_: Any) -> Any:
        self.dialled.append(host)
        raise ConnectionRefusedError(host)


async def request_all(rebinding: Rebinding, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send every kind of request to names that resolve by turns."""
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", rebinding.dial)
    issuer = "https://login.example.net"
    metadata = IssuerMetadata(
        issuer,
        f"{issuer}/authorize",
        f"{issuer}/token",
        f"{issuer}/register",
        f"{issuer}/revoke",
    )
    client, trusted = OAuthClientCredentials("comity", "secret"), (SERVER,)
    async with HttpConnectionPool(default_tls()) as pool:
        oauth = OAuthHttpClient(pool, rebinding.resolve)
        for _ in range(3):
            for request in (
                oauth.issuer_metadata(issuer, trusted),
                oauth.register(metadata, {"redirect_uris": ["https://a.example"]}, trusted),
                oauth.request_token(metadata, client, {"code": "c"}, trusted),
                oauth.revoke(metadata, client, "token", trusted),
            ):
                try:
                    assert await request is False
                except Unavailable:
                    continue
        await oauth.close()


@pytest.mark.parametrize("private", PRIVATE)
async def test_no_request_is_dialled_to_an_address_that_was_not_checked(
    private: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rebinding in (
        Rebinding(private),
        Rebinding(private, first=False),
        Rebinding(private, mixed=True),
    ):
        with monkeypatch.context() as patched:
            await request_all(rebinding, patched)
        assert len(rebinding.asked) == 12
        assert set(rebinding.dialled) <= {PUBLIC}
