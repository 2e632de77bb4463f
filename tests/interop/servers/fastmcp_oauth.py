"""A FastMCP server that is its own authorization server, with FastMCP's provider in memory.

`python fastmcp_oauth.py PORT`: `POST /expire` ends all access tokens, and `GET /known` counts what
the provider knows.
"""

import sys

from fastmcp import FastMCP
from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider
from fastmcp.server.dependencies import get_access_token
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions
from starlette.requests import Request
from starlette.responses import JSONResponse

PORT = int(sys.argv[1])

provider = InMemoryOAuthProvider(
    base_url=f"http://127.0.0.1:{PORT}",
    client_registration_options=ClientRegistrationOptions(enabled=True, valid_scopes=["tools"]),
    revocation_options=RevocationOptions(enabled=True),
    required_scopes=["tools"],
)
server = FastMCP("protected", auth=provider)


@server.tool
def whoami() -> str:
    """Say whose account the call uses. The provider knows clients only."""
    token = get_access_token()
    return "client" if token and token.client_id in provider.clients else "nobody"


@server.custom_route("/expire", methods=["POST"])
async def expire(_: Request) -> JSONResponse:
    provider.access_tokens.clear()
    return JSONResponse({})


@server.custom_route("/known", methods=["GET"])
async def known(_: Request) -> JSONResponse:
    return JSONResponse(
        {
            "clients": len(provider.clients),
            "access": len(provider.access_tokens),
            "refresh": len(provider.refresh_tokens),
        }
    )


if __name__ == "__main__":
    server.run(
        transport="http", host="127.0.0.1", port=PORT, show_banner=False, log_level="warning"
    )
