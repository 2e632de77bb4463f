"""HTML pages without script: their style, their headers, and the forms that they post.

A page shows untrusted text as text. Its headers forbid scripts, frames and other sites.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from html import escape
from typing import Final
from urllib.parse import parse_qs

from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.http import asgi
from comity.http.asgi import Receive, Send

MAX_FORM_BYTES: Final = 16 * 1024
MAX_FIELDS: Final = 8

_STYLE: Final = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #fff; --ink: #1a1d21; --soft: #5b6470;
  --line: #dfe3e8; --code: #f0f2f5; --yes: #17693a; --no: #b3261e; --odd: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ground: #121417; --card: #1c1f24; --ink: #e8eaed;
  --soft: #a0a8b3; --line: #33383f; --code: #14171a; --yes: #2d8f57; --no: #d9534a;
  --odd: #e0a94a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 42rem; margin: 0 auto; padding: 1rem; }
header { color: var(--soft); padding: .25rem 0 .75rem; font-size: .875rem; }
article { background: var(--card); border: 1px solid var(--line); border-radius: .75rem;
  padding: 1.25rem; }
h1 { font-size: 1.25rem; line-height: 1.35; margin: 0 0 .75rem; overflow-wrap: anywhere; }
p { margin: 0 0 .75rem; overflow-wrap: anywhere; }
.soft { color: var(--soft); font-size: .9375rem; }
.odd { color: var(--odd); }
.risk { display: inline-block; border: 1px solid currentcolor; border-radius: 1rem;
  padding: 0 .625rem; margin: 0 0 .75rem; font-size: .875rem; font-weight: 600; }
.dangerous { color: var(--no); } .moderate { color: var(--odd); } .safe { color: var(--yes); }
dl { margin: 0 0 1rem; display: grid; grid-template-columns: 7.5rem minmax(0, 1fr); }
dt, dd { margin: 0; padding: .4rem 0; border-top: 1px solid var(--line); }
dt { color: var(--soft); padding-right: .75rem; font-size: .9375rem; }
dd { overflow-wrap: anywhere; }
dd.code, pre { font: .875rem/1.45 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
pre { margin: 0; background: var(--code); border-radius: .5rem; padding: .625rem .75rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
label { display: block; margin: 0 0 .25rem; font-size: .9375rem; color: var(--soft); }
input { width: 100%; padding: .625rem .75rem; margin: 0 0 1rem; font: inherit; color: inherit;
  background: var(--ground); border: 1px solid var(--line); border-radius: .5rem; }
.buttons { display: grid; grid-template-columns: 1fr 1fr; gap: .75rem; }
button:only-child { grid-column: 1 / -1; }
.done { border-left: .375rem solid var(--yes); padding-left: .75rem; font-size: 1.125rem;
  font-weight: 600; margin-bottom: 1.25rem; }
.done.denied { border-color: var(--no); }
button { padding: .875rem 1rem; font: inherit; font-weight: 600; border-radius: .625rem;
  border: 2px solid var(--line); background: var(--card); color: var(--ink); cursor: pointer; }
button.yes, a.yes { background: var(--yes); border-color: var(--yes); color: #fff; }
button.no { border-color: var(--no); color: var(--no); order: -1; }
a { color: inherit; }
a.button { display: block; padding: .875rem 1rem; font-weight: 600; border-radius: .625rem;
  border: 2px solid var(--line); text-align: center; text-decoration: none; }
a:focus-visible, button:focus-visible, input:focus-visible {
  outline: 3px solid #4a90e2; outline-offset: 2px; }
@media (max-width: 30rem) { main { padding: .5rem; } article { padding: 1rem; }
  dl { grid-template-columns: 1fr; } dd { border-top: 0; padding-top: 0; }
  dt { padding-bottom: 0; } }
"""
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
PROTECTION_HEADERS: Final = (
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    # No other site learns the address. With `no-referrer` the browser would hide the origin of our
    # own form too, and we could not tell it from the form of another site.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-robots-tag", b"noindex"),
)
"""Headers that keep a page out of frames, other sites and search engines."""

HEADERS: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (
        b"content-security-policy",
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; "
        "form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'".encode(),
    ),
    *PROTECTION_HEADERS,
    (b"cache-control", b"no-store"),
)


def render_page(title: str, *parts: str) -> bytes:
    """Return a whole page. The title is untrusted text, the parts are trusted HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main><header>Comity</header><article>{''.join(parts)}</article></main></body>"
        "</html>\n"
    ).encode()


def render_heading(text: str) -> str:
    return f"<h1>{escape(text)}</h1>"


def render_paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


async def read_form(headers: Mapping[bytes, bytes], receive: Receive) -> dict[str, str]:
    """Return the fields of a form that one of our own pages posted. Raises MalformedMessage."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/x-www-form-urlencoded":
        raise MalformedMessage("send the form of this page", INVALID_PARAMS)
    if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
        raise MalformedMessage("pages of other sites may post nothing here", INVALID_PARAMS)
    return parse_form(await asgi.read_body(receive, headers, MAX_FORM_BYTES))


def parse_form(body: bytes) -> dict[str, str]:
    """Return the fields of a form or a query. Of a repeated field, the last value counts."""
    try:
        found = parse_qs(body.decode("ascii"), max_num_fields=MAX_FIELDS, errors="replace")
    except ValueError:
        raise MalformedMessage("this cannot be read", INVALID_PARAMS) from None
    return {name: values[-1] for name, values in found.items()}


async def send_page(
    send: Send, status: int, body: bytes, extra: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    headers = [*HEADERS, (b"content-length", b"%d" % len(body)), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
