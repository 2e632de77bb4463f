"""How the page of one ask looks: plain HTML, without a script, nothing fetched from anywhere."""

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from typing import Final, NamedTuple

from comity.rules.ask_words import Row

LONGEST_REASON: Final = 500
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
button.yes { background: var(--yes); border-color: var(--yes); color: #fff; }
button.no { border-color: var(--no); color: var(--no); }
button:focus-visible, input:focus-visible {
  outline: 3px solid #4a90e2; outline-offset: 2px; }
@media (max-width: 30rem) { main { padding: .5rem; } article { padding: 1rem; }
  dl { grid-template-columns: 1fr; } dd { border-top: 0; padding-top: 0; }
  dt { padding-bottom: 0; } }
"""
_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (
        b"content-security-policy",
        f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'".encode(),
    ),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    # Nobody elsewhere learns of the address. With `no-referrer` a browser would not say where its
    # own form was filled in, and another site's could not be told from it.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
    (b"x-robots-tag", b"noindex"),
)
_SHORT_CODE: Final = frozenset({"Definition", "Digest", "Trace"})


class Shown(NamedTuple):
    """One ask as the page shows it."""

    title: str
    risk: str
    rows: Iterable[Row]


def page(title: str, *parts: str) -> bytes:
    """A whole page; the title is anybody's text, the parts are HTML of ours."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main><header>Comity</header><article>{''.join(parts)}</article></main></body>"
        "</html>\n"
    ).encode()


def heading(text: str) -> str:
    return f"<h1>{escape(text)}</h1>"


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def told(shown: Shown) -> str:
    """What is asked, with everything that somebody should have seen who answers it."""
    known = shown.risk if shown.risk in ("safe", "moderate", "dangerous") else ""
    risk = f'<p class="risk {known}">{escape(shown.risk)}</p>' if shown.risk else ""
    rows = "".join(_row(row) for row in shown.rows if row.name != "Risk")
    return f"{heading(shown.title)}{risk}<dl>{rows}</dl>"


def _row(row: Row) -> str:
    name, text = escape(row.name), escape(row.text)
    if row.is_code:
        return f"<dt>{name}</dt><dd><pre>{text}</pre></dd>"
    kind = ' class="code"' if row.name in _SHORT_CODE else ""
    return f"<dt>{name}</dt><dd{kind}>{text}</dd>"


def answer_form(token: str) -> str:
    """The two buttons. Nothing is decided before one of them is pressed."""
    return (
        '<form method="post" autocomplete="off">'
        f'<input type="hidden" name="t" value="{escape(token)}">'
        '<label for="reason">Why, if you want to say it</label>'
        f'<input id="reason" name="reason" maxlength="{LONGEST_REASON}">'
        '<div class="buttons">'
        '<button class="no" name="verdict" value="decline">Deny</button>'
        '<button class="yes" name="verdict" value="accept">Approve</button>'
        "</div></form>"
    )


def key_form() -> str:
    """Where somebody shows who it is; of the ask nothing is told before."""
    return (
        '<form method="post" autocomplete="off">'
        '<label for="key">Your API key</label>'
        '<input id="key" name="key" type="password" autocomplete="off" required '
        'maxlength="200" spellcheck="false" autocapitalize="off">'
        '<div class="buttons"><button class="yes">Show what is asked</button></div></form>'
    )
