"""HTML pages for a person who opens an address of the gateway in a browser.

Programs get JSON at the same addresses. The pages have no script and show nothing that needs a
permission.
"""

from html import escape
from http import HTTPStatus
from typing import Final

from comity.console.endpoint import HOW_TO_GET_IT, NO_CONSOLE
from comity.errors import MalformedMessage, Unavailable
from comity.http import asgi
from comity.http.asgi import Receive, Scope, Send
from comity.http.pages import render_heading, render_page, render_paragraph, send_page

LANDING_PATH: Final = "/"

_VARY: Final = ((b"vary", b"accept"),)

_ENDPOINTS: Final = (
    ("/mcp", "MCP, all servers. Give this address to an MCP client."),
    ("/servers/{id}/mcp", "MCP, one server."),
    ("/tools", "The tools as REST endpoints."),
)
_LINKS: Final = (
    ("/openapi.json", "OpenAPI of the tools"),
    ("/health", "Health"),
    ("/ready", "Readiness"),
)


async def landing_page(
    scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
) -> None:
    """Say what this is, which addresses it has, and that it has no console."""
    if scope["method"] not in ("GET", "HEAD"):
        raise asgi.not_found_error()
    # The Host header was checked before.
    host = headers.get(b"host", b"").decode("latin-1").strip()
    origin = f"{scope.get('scheme', 'http')}://{host}"
    rows = "".join(
        f'<dt class="code">{escape(path)}</dt><dd class="code">{escape(origin + path)}<br>'
        f'<span class="soft">{escape(meaning)}</span></dd>'
        for path, meaning in _ENDPOINTS
    )
    links = " · ".join(f'<a href="{path}">{escape(name)}</a>' for path, name in _LINKS)
    body = render_page(
        "Comity",
        render_heading("Comity"),
        render_paragraph("This is a gateway for the Model Context Protocol (MCP)."),
        render_paragraph(f"{NO_CONSOLE} {HOW_TO_GET_IT}", "soft"),
        f"<dl>{rows}</dl>",
        f"<p>{links}</p>",
        render_paragraph("Help: run `comity --help` on the machine of the gateway.", "soft"),
    )
    await send_page(send, 200, body, _VARY)


async def send_refusal_page(send: Send, error: MalformedMessage | Unavailable) -> None:
    """Send a refusal to a browser as a page."""
    status, _ = asgi.encode_refusal(error)
    title = f"{status} {HTTPStatus(status).phrase}"
    text = str(error)
    body = render_page(title, render_heading(title), render_paragraph(text[:1].upper() + text[1:]))
    await send_page(send, status, body, _VARY)
