"""Names of issuers that resolve to a public address when checked and to this machine later."""

import asyncio

import pytest

from comity.accounts.messages import IssuerMetadata, OAuthClientCredentials
from comity.accounts.oauth_client import OAuthHttpClient
from comity.errors import Unavailable
from comity.http.client.client import default_tls
from comity.http.client.pool import HttpConnectionPool
from tests.support.rebinding import PRIVATE, PUBLIC, Rebinding, rebindings

SERVER = "https://mcp.example.com/mcp"


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
    for rebinding in rebindings(private):
        with monkeypatch.context() as patched:
            await request_all(rebinding, patched)
        assert len(rebinding.asked) == 12
        assert set(rebinding.dialled) <= {PUBLIC}
