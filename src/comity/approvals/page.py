"""The web page on which a person answers an approval request."""

import base64
import hashlib
import logging
from collections.abc import Iterable, Mapping
from datetime import timedelta
from html import escape
from typing import Final, NamedTuple
from urllib.parse import parse_qs

from comity.approvals import presentation
from comity.approvals.kinds import RULES_BY_KIND
from comity.approvals.model import ApprovalDecision, ApprovalRequest, ApprovalState
from comity.approvals.presentation import PAGE_PATH, ApprovalLink, DetailRow
from comity.approvals.service import ApprovalInbox
from comity.errors import INVALID_PARAMS, UNAUTHENTICATED, MalformedMessage, Unavailable
from comity.http import asgi
from comity.http.asgi import HttpEndpoint, Receive, Scope, Send
from comity.identity.authentication import Authenticator, RequestCredentials
from comity.identity.keys import looks_like_key
from comity.mcp.actors import LOCAL_OPERATOR, Actor
from comity.toolkit.text import start_sentence

MAX_REASON_LENGTH: Final = 500
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
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (
        b"content-security-policy",
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; "
        "form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'".encode(),
    ),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    # No other site learns the address. With `no-referrer` the browser would hide the origin of our
    # own form too, and we could not tell it from the form of another site.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
    (b"x-robots-tag", b"noindex"),
)
_SHORT_CODE_ROWS: Final = frozenset({"Definition", "Digest", "Trace"})


class ApprovalPageView(NamedTuple):
    """The parts of the page of one request."""

    title: str
    risk: str
    rows: Iterable[DetailRow]


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


def render_request(view: ApprovalPageView) -> str:
    """Return the details that an approver should read."""
    known = view.risk if view.risk in ("safe", "moderate", "dangerous") else ""
    risk = f'<p class="risk {known}">{escape(view.risk)}</p>' if view.risk else ""
    rows = "".join(_render_row(row) for row in view.rows if row.name != "Risk")
    return f"{render_heading(view.title)}{risk}<dl>{rows}</dl>"


def _render_row(row: DetailRow) -> str:
    name, text = escape(row.name), escape(row.text)
    if row.is_code:
        return f"<dt>{name}</dt><dd><pre>{text}</pre></dd>"
    kind = ' class="code"' if row.name in _SHORT_CODE_ROWS else ""
    return f"<dt>{name}</dt><dd{kind}>{text}</dd>"


def answer_form(token: str) -> str:
    """Return the form with the two buttons."""
    return (
        '<form method="post" autocomplete="off">'
        f'<input type="hidden" name="t" value="{escape(token)}">'
        '<label for="reason">Reason (optional)</label>'
        f'<input id="reason" name="reason" maxlength="{MAX_REASON_LENGTH}">'
        '<div class="buttons">'
        '<button class="no" name="verdict" value="decline">Deny</button>'
        '<button class="yes" name="verdict" value="accept">Approve</button>'
        "</div></form>"
    )


def key_form() -> str:
    """Return the form for an API key. The page shows nothing of the request before."""
    return (
        '<form method="post" autocomplete="off">'
        '<label for="key">Your API key</label>'
        '<input id="key" name="key" type="password" autocomplete="off" required '
        'maxlength="200" spellcheck="false" autocapitalize="off">'
        '<div class="buttons"><button class="yes">Show the request</button></div></form>'
    )


log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 16 * 1024
MAX_FIELDS: Final = 8
KEY_PAGE_LIFETIME: Final = timedelta(minutes=10)
"""How long a page with a key stays valid."""

_KEY_CREDENTIAL_PREFIX: Final = "key:"
_DECISION_BY_BUTTON: Final = {
    "accept": ApprovalDecision.ACCEPT,
    "decline": ApprovalDecision.DECLINE,
}
_SIGN_IN_TEXT: Final = "Approval requested. Sign in to see the details."
_LOCAL_MODE_TEXT: Final = (
    "To answer this, run `comity approve` or `comity deny`. To answer it in the browser, open the "
    "link that `comity approvals link` prints. You can also enter an API key here."
)
_INVALID_LINK_TEXT: Final = "This link is invalid or has expired. Sign in with your API key."
_NOT_VISIBLE_TEXT: Final = "This approval request does not exist, or you cannot see it."
_DONE_TEXT_BY_STATE: Final = {
    ApprovalState.APPROVED: "You approved it. It may run once, exactly as it was shown.",
    ApprovalState.CONSUMED: "You approved it, and it has been used for its one call.",
    ApprovalState.DENIED: "You denied it. It does not run.",
    ApprovalState.PENDING: (
        "Your answer is recorded. More people must approve before the call runs."
    ),
}


class AsksPage:
    """The endpoint of all paths that begin with /approvals/."""

    def __init__(self, inbox: ApprovalInbox, authenticator: Authenticator) -> None:
        self._inbox = inbox
        self._approvals = inbox.approvals
        self._authenticator = authenticator

    @property
    def endpoints(self) -> dict[str, HttpEndpoint]:
        return {PAGE_PATH: self.serve_page}

    async def serve_page(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        method = scope["method"]
        if method not in ("GET", "HEAD", "POST"):
            await asgi.send_empty(send, 405, ((b"allow", b"GET, HEAD, POST"),))
            return
        id: str = scope["path"].removeprefix(PAGE_PATH)
        client = scope.get("client")
        is_near = asgi.is_loopback_name(headers.get(b"host", b""))
        arrival = RequestCredentials(headers, client[0] if client else "", PAGE_PATH, is_near)
        try:
            if method == "POST":
                fields = await _read_form(headers, receive)
                status, body = await self._post(id, fields, arrival)
            else:
                token = _parse_form(scope.get("query_string", b"")).get("t", "")
                status, body = await self._get(id, token, arrival)
        except (MalformedMessage, Unavailable) as refused:
            status, body = _refusal_page(refused)
        await _send_response(send, status, b"" if method == "HEAD" else body)

    async def _get(self, id: str, token: str, credentials: RequestCredentials) -> tuple[int, bytes]:
        """Answer a GET request."""
        if token:
            found = self._open_link(id, token, credentials)
            if found is None:
                return 403, _sign_in_page(_INVALID_LINK_TEXT)
            return await self._show_request(found[0], id, token)
        return 200, _sign_in_page(_LOCAL_MODE_TEXT) if self._is_local(
            credentials
        ) else _sign_in_page()

    async def _post(
        self, id: str, fields: Mapping[str, str], credentials: RequestCredentials
    ) -> tuple[int, bytes]:
        token = fields.get("t", "")
        if not token:
            return await self._show_request(
                await self._authenticate_key(fields.get("key", ""), credentials), id
            )
        verdict = _DECISION_BY_BUTTON.get(fields.get("verdict", ""))
        found = self._open_link(id, token, credentials)
        if found is None:
            return 403, _sign_in_page(_INVALID_LINK_TEXT)
        if verdict is None:
            raise MalformedMessage("choose to approve or to deny", INVALID_PARAMS)
        reason = fields.get("reason", "").strip()[:MAX_REASON_LENGTH]
        answered = await self._approvals.answer(found[0], id, verdict, reason)
        said = _DONE_TEXT_BY_STATE.get(answered.state, presentation.describe_state(answered))
        kind = "done" if verdict is ApprovalDecision.ACCEPT else "done denied"
        return 200, self._render(answered, before=render_paragraph(said, kind))

    # Authentication.

    def _open_link(
        self, id: str, token: str, credentials: RequestCredentials
    ) -> tuple[Actor, ApprovalLink] | None:
        """Return the actor of a link; None where the link or its principal is invalid."""
        link = self._inbox.links.unseal(token, id, self._approvals.clock())
        if link is None:
            return None
        if link.credential == LOCAL_OPERATOR.credential:
            actor = LOCAL_OPERATOR if self._is_local(credentials) else None
        else:
            actor = self._inbox.find_actor(
                link.party, link.credential.removeprefix(_KEY_CREDENTIAL_PREFIX)
            )
        return None if actor is None or actor.party != link.party else (actor, link)

    def _is_local(self, credentials: RequestCredentials) -> bool:
        """Return whether a request comes from the machine of a gateway in local mode."""
        try:
            self._authenticator.local(credentials)
        except MalformedMessage:
            return False
        return True

    async def _authenticate_key(self, key: str, credentials: RequestCredentials) -> Actor:
        """Return the holder of a key. Limits wrong keys by address. Raises MalformedMessage."""
        shown = b"Bearer " + key.strip().encode("utf-8", "replace")
        # Tokens are for programs. Any other text counts as a wrong key.
        if not looks_like_key(shown[7:]):
            self._authenticator.login_throttle.count_failure(credentials.peer)
            raise MalformedMessage("this is no API key of this gateway", UNAUTHENTICATED)
        return await self._authenticator.identify(
            credentials._replace(headers={b"authorization": shown})
        )

    # Pages.

    async def _show_request(self, actor: Actor, id: str, token: str = "") -> tuple[int, bytes]:
        try:
            ask = await self._approvals.get(actor, id)
        except MalformedMessage:
            return 403, render_page("Comity", render_heading(_NOT_VISIBLE_TEXT))
        reason = self._approvals.refusal_reason(ask, actor)
        if not ask.is_open or ask.expires_at <= self._approvals.clock():
            return 200, self._render(ask)
        if reason is not None:
            who = start_sentence(self._approvals.describe_approvers(ask, actor))
            said = f"You cannot answer it: {reason}. {who} can."
            return 200, self._render(ask, render_paragraph(said))
        if RULES_BY_KIND[ask.kind].wants_content:
            how = (
                "This request needs more than yes or no; answer it with "
                f"/api/approvals/{ask.id}/answer."
            )
            return 200, self._render(ask, render_paragraph(how))
        form = answer_form(token or self._make_token(ask, actor))
        return 200, self._render(ask, form, similar_text=await self._inbox.describe_similar(ask))

    def _make_token(self, request: ApprovalRequest, actor: Actor) -> str:
        until = min(request.expires_at, self._approvals.clock() + KEY_PAGE_LIFETIME)
        return self._inbox.links.seal(
            ApprovalLink(request.id, actor.party, until, actor.credential)
        )

    def _render(
        self, request: ApprovalRequest, after: str = "", before: str = "", similar_text: str = ""
    ) -> bytes:
        now = self._approvals.clock()
        rows = presentation.detail_rows(request, now, similar_text)
        shown = ApprovalPageView(
            presentation.describe_request(request), presentation.request_risk(request), rows
        )
        return render_page(
            presentation.describe_request(request), before, render_request(shown), after
        )


def _sign_in_page(reason: str = _SIGN_IN_TEXT) -> bytes:
    kind = "" if reason in (_SIGN_IN_TEXT, _LOCAL_MODE_TEXT) else "odd"
    return render_page(
        "Comity",
        render_heading("Who are you?"),
        render_paragraph(reason, kind),
        key_form(),
    )


def _refusal_page(error: MalformedMessage | Unavailable) -> tuple[int, bytes]:
    """Return a refusal as a page. The page asks again for a wrong key."""
    status, _ = asgi.encode_refusal(error)
    if error.fault is UNAUTHENTICATED:
        return status, _sign_in_page(_sentence(error))
    said = render_paragraph(_sentence(error))
    return status, render_page("Comity", render_heading("That did not work"), said)


def _sentence(error: MalformedMessage | Unavailable) -> str:
    return f"{start_sentence(presentation.one_line(str(error)))}."


async def _read_form(headers: Mapping[bytes, bytes], receive: Receive) -> dict[str, str]:
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/x-www-form-urlencoded":
        raise MalformedMessage("send the form of this page", INVALID_PARAMS)
    if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
        raise MalformedMessage("pages of other sites may post nothing here", INVALID_PARAMS)
    return _parse_form(await asgi.read_body(receive, headers, MAX_BODY_BYTES))


def _parse_form(body: bytes) -> dict[str, str]:
    try:
        found = parse_qs(body.decode("ascii"), max_num_fields=MAX_FIELDS, errors="replace")
    except ValueError:
        raise MalformedMessage("this cannot be read", INVALID_PARAMS) from None
    return {name: values[-1] for name, values in found.items()}


async def _send_response(send: Send, status: int, body: bytes) -> None:
    headers = [*HEADERS, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
