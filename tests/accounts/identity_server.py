"""An MCP server of the official SDK whose tokens come from the sign-in at a company's issuer.

`python -m tests.accounts.identity_server id_jag|token_exchange COMPANY CLIENT SECRET PORT ISSUER`

With `id_jag` the server has an authorization server of its own, which accepts identity assertions
of the company. With `token_exchange` it accepts access tokens of the company. `POST /expire` ends
all tokens, and `GET /seen` tells every header and body that arrived.
"""

import json
import secrets
import sys
import time
from typing import Any

import jwt
import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    IdentityAssertionParams,
    OAuthAuthorizationServerProvider,
    TokenError,
)
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.requests import Request
from starlette.responses import JSONResponse

from tests.accounts.step_up import StepUp

ID_JAG_TYPE = "oauth-id-jag+jwt"

GRANT, COMPANY, CLIENT, SECRET = sys.argv[1:5]
PORT = int(sys.argv[5])
ORIGIN = f"http://127.0.0.1:{PORT}"
RESOURCE = f"{ORIGIN}/mcp"
keys = jwt.PyJWKClient(f"{COMPANY}/keys")
seen: list[str] = []


def verify(token: str, audience: str, kind: str) -> dict[str, Any]:
    if jwt.get_unverified_header(token).get("typ") != kind:
        raise jwt.InvalidTokenError(kind)
    key = keys.get_signing_key_from_jwt(token)
    required = ["exp", "sub", "jti", "client_id", "resource"]
    return jwt.decode(
        token,
        key,
        algorithms=["RS256"],
        audience=audience,
        issuer=COMPANY,
        options={"require": required},
    )


class AssertionProvider(OAuthAuthorizationServerProvider[Any, Any, AccessToken]):
    """The authorization server of the SDK, with the checks that it demands of this method."""

    def __init__(self) -> None:
        self.access: dict[str, AccessToken] = {}
        self._used: set[str] = set()

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        if client_id != CLIENT:
            return None
        return OAuthClientInformationFull(
            client_id=CLIENT,
            client_secret=SECRET,
            redirect_uris=None,
            grant_types=["urn:ietf:params:oauth:grant-type:jwt-bearer"],
            token_endpoint_auth_method="client_secret_basic",
        )

    async def exchange_identity_assertion(
        self, client: OAuthClientInformationFull, params: IdentityAssertionParams
    ) -> OAuthToken:
        try:
            claims = verify(params.assertion, f"{ORIGIN}/", ID_JAG_TYPE)
        except jwt.PyJWTError as error:
            raise TokenError("invalid_grant", str(error)) from None
        is_own = claims["client_id"] == client.client_id and claims["resource"] == RESOURCE
        if not is_own or claims["jti"] in self._used:
            raise TokenError("invalid_grant", "it is for another client or server, or was used")
        self._used.add(claims["jti"])
        token, scopes = secrets.token_urlsafe(24), claims["scope"].split()
        self.access[token] = AccessToken(
            token=token,
            client_id=CLIENT,
            scopes=scopes,
            resource=RESOURCE,
            subject=claims["sub"],
            expires_at=int(time.time()) + 300,
        )
        return OAuthToken(access_token=token, expires_in=300, scope=" ".join(scopes))

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def verify_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)


class CompanyTokens:
    """Accepts the access tokens of the company that are for this server."""

    def __init__(self) -> None:
        self._ended: set[str] = set()
        self._known: set[str] = set()

    async def verify_token(self, token: str) -> AccessToken | None:
        try:
            claims = verify(token, RESOURCE, "at+jwt")
        except jwt.PyJWTError:
            return None
        self._known.add(token)
        if token in self._ended:
            return None
        scopes = claims["scope"].split()
        return AccessToken(token=token, client_id="", scopes=scopes, subject=claims["sub"])

    def end_all(self) -> None:
        self._ended |= self._known


provider = AssertionProvider()  # pyright: ignore[reportAbstractUsage] - no pages, no refreshes
tokens = CompanyTokens()
is_assertion = GRANT == "id_jag"
server = MCPServer(
    "protected",
    auth=AuthSettings(
        issuer_url=AnyHttpUrl(ORIGIN if is_assertion else COMPANY),
        resource_server_url=AnyHttpUrl(RESOURCE),
        required_scopes=["tools"],
        identity_assertion_enabled=is_assertion,
    ),
    auth_server_provider=provider if is_assertion else None,
    token_verifier=None if is_assertion else tokens,
)


@server.tool()
def whoami() -> str:
    """Say whose account the call uses."""
    token = get_access_token()
    return f"{token.subject}" if token else "nobody"


@server.tool()
def write(text: str) -> str:
    """Write, which needs another scope."""
    token = get_access_token()
    return f"{token.subject} wrote {text}" if token else "nobody"


@server.custom_route("/expire", methods=["POST"])
async def expire(_: Request) -> JSONResponse:
    provider.access.clear()
    tokens.end_all()
    return JSONResponse({})


@server.custom_route("/seen", methods=["GET"])
async def tell_seen(_: Request) -> JSONResponse:
    return JSONResponse(seen)


async def may_write(token: str) -> bool:
    found = await (provider if is_assertion else tokens).verify_token(token)
    return found is None or "write" in found.scopes


class Witness:
    """Notes all that arrives."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append(repr((scope["path"], scope["query_string"], scope["headers"])))

        async def noted() -> Any:
            message = await receive()
            seen.append(repr(message.get("body", b"")))
            return message

        await self._app(scope, noted, send)


if __name__ == "__main__":
    print(json.dumps({"resource": RESOURCE}), flush=True)
    app = StepUp(server.streamable_http_app(), PORT, may_write)
    uvicorn.run(Witness(app), port=PORT, log_level="warning")
