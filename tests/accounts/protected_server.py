"""An MCP server of the official SDK that wants a token, and says whose it is.

`python -m tests.accounts.protected_server PORT ISSUER`
"""

import json
import sys

import httpx2
import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from pydantic import AnyHttpUrl

from tests.accounts.step_up import StepUp

PORT, ISSUER = int(sys.argv[1]), sys.argv[2]
RESOURCE = f"http://127.0.0.1:{PORT}/mcp"


# One client for all tokens: a new one reads the certificates of this machine each time.
http = httpx2.AsyncClient()


class Introspection:
    """Asks the authorization server about each token."""

    async def verify_token(self, token: str) -> AccessToken | None:
        found = (await http.post(f"{ISSUER}/introspect", data={"token": token})).json()
        if not found["active"] or found["aud"] != RESOURCE:
            return None
        return AccessToken(
            token=token,
            client_id=found["client_id"],
            scopes=found["scope"].split(),
            resource=found["aud"],
            subject=found["sub"],
        )


server = MCPServer(
    "protected",
    auth=AuthSettings(
        issuer_url=AnyHttpUrl(ISSUER),
        resource_server_url=AnyHttpUrl(RESOURCE),
        required_scopes=["tools"],
    ),
    token_verifier=Introspection(),
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


async def may_write(token: str) -> bool:
    found = await Introspection().verify_token(token)
    return found is None or "write" in found.scopes


if __name__ == "__main__":
    print(json.dumps({"resource": RESOURCE}), flush=True)
    uvicorn.run(
        StepUp(server.streamable_http_app(), PORT, may_write), port=PORT, log_level="warning"
    )
