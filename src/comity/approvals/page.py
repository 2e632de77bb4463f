"""The web page on which a person answers an approval request."""

import logging
from collections.abc import Iterable, Mapping
from datetime import timedelta
from html import escape
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode

from comity.approvals import presentation
from comity.approvals.kinds import RULES_BY_KIND
from comity.approvals.model import ApprovalDecision, ApprovalRequest, ApprovalState
from comity.approvals.presentation import PAGE_PATH, ApprovalLink, DetailRow
from comity.approvals.service import ApprovalInbox
from comity.errors import INVALID_PARAMS, UNAUTHENTICATED, MalformedMessage, Unavailable
from comity.http import asgi
from comity.http.asgi import HttpEndpoint, Receive, Scope, Send
from comity.http.pages import (
    parse_form,
    read_form,
    render_heading,
    render_page,
    render_paragraph,
    send_page,
)
from comity.identity.authentication import Authenticator, RequestCredentials
from comity.identity.keys import looks_like_key
from comity.mcp.actors import LOCAL_OPERATOR, Actor
from comity.toolkit.text import start_sentence

MAX_REASON_LENGTH: Final = 500
_SHORT_CODE_ROWS: Final = frozenset({"Definition", "Digest", "Trace"})


class ApprovalPageView(NamedTuple):
    """The parts of the page of one request."""

    title: str
    risk: str
    rows: Iterable[DetailRow]


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


def answer_form(token: str, word: str | None, reason: str = "") -> str:
    """Return the form with the two buttons. A request with a word is approved by typing it."""
    field = ""
    deny = '<button class="no" name="verdict" value="decline">Deny</button>'
    approve = '<button class="yes" name="verdict" value="accept">Approve</button>'
    buttons = deny + approve
    if word is not None:
        # The Enter key presses the first button. In the field of the word it means to approve.
        buttons = approve + deny
        # It is not required by the page, because a denial needs no word.
        field = (
            f'<label for="word">To approve, type <code>{escape(word)}</code></label>'
            '<input id="word" name="word" spellcheck="false" autocapitalize="off">'
        )
    return (
        '<form method="post" autocomplete="off">'
        f'<input type="hidden" name="t" value="{escape(token)}">'
        '<label for="reason">Reason (optional)</label>'
        f'<input id="reason" name="reason" maxlength="{MAX_REASON_LENGTH}" '
        f'value="{escape(reason)}">{field}'
        '<div class="buttons">'
        f"{buttons}</div></form>"
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
_OTHER_PERSON_TEXT: Final = "This link is for another person. Sign in as that person."
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
    """The endpoint of all paths that begin with /approvals/.

    A link with `t` answers as the principal that it names. A link with `for` only says for whom it
    is: before this person has signed in, the page shows nothing and takes no answer.
    """

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
            query = parse_form(scope.get("query_string", b""))
            if method == "POST":
                fields = await read_form(headers, receive)
                status, body = await self._post(id, fields, query.get("for", ""), arrival)
            else:
                status, body = await self._get(id, query, arrival)
        except (MalformedMessage, Unavailable) as refused:
            status, body = _refusal_page(refused)
        await send_page(send, status, b"" if method == "HEAD" else body)

    async def _get(
        self, id: str, query: Mapping[str, str], credentials: RequestCredentials
    ) -> tuple[int, bytes]:
        """Answer a GET request."""
        token, recipient = query.get("t", ""), query.get("for", "")
        if token:
            found = await self._open_link(id, token, credentials)
            if found is None:
                return 403, self._sign_in_page(id, _INVALID_LINK_TEXT)
            return await self._show_request(found[0], id, token)
        if recipient and self._unseal_recipient(id, recipient) is None:
            return 403, self._sign_in_page(id, _INVALID_LINK_TEXT)
        actor = await self._session_actor(credentials)
        if actor is not None:
            return await self._show_to(actor, id, recipient)
        text = _LOCAL_MODE_TEXT if self._is_local(credentials) else _SIGN_IN_TEXT
        return 200, self._sign_in_page(id, text, recipient)

    async def _post(
        self, id: str, fields: Mapping[str, str], recipient: str, credentials: RequestCredentials
    ) -> tuple[int, bytes]:
        token = fields.get("t", "")
        if not token:
            actor = await self._authenticate_key(fields.get("key", ""), credentials)
            return await self._show_to(actor, id, recipient)
        verdict = _DECISION_BY_BUTTON.get(fields.get("verdict", ""))
        found = await self._open_link(id, token, credentials)
        if found is None:
            return 403, self._sign_in_page(id, _INVALID_LINK_TEXT)
        if verdict is None:
            raise MalformedMessage("choose to approve or to deny", INVALID_PARAMS)
        reason = fields.get("reason", "").strip()[:MAX_REASON_LENGTH]
        ask = await self._approvals.get(found[0], id)
        word = presentation.confirmation_word(ask)
        is_typed = word is None or fields.get("word", "").strip() == word
        if verdict is ApprovalDecision.ACCEPT and ask.is_open and not is_typed:
            problem = render_paragraph(f"Nothing is approved yet. Type {word} to approve.", "odd")
            form = answer_form(token, word, reason)
            similar = await self._inbox.describe_similar(ask)
            return 400, self._render(ask, form, problem, similar)
        answered = await self._approvals.answer(found[0], id, verdict, reason)
        said = _DONE_TEXT_BY_STATE.get(answered.state, presentation.describe_state(answered))
        kind = "done" if verdict is ApprovalDecision.ACCEPT else "done denied"
        return 200, self._render(answered, before=render_paragraph(said, kind))

    # Authentication.

    async def _open_link(
        self, id: str, token: str, credentials: RequestCredentials
    ) -> tuple[Actor, ApprovalLink] | None:
        """Return the actor of a link; None where the link or its principal is invalid."""
        link = self._inbox.links.unseal(token, id, self._approvals.clock())
        if link is None:
            return None
        session = await self._session_actor(credentials)
        if session is not None and session.credential == link.credential:
            actor = session
        elif link.credential == LOCAL_OPERATOR.credential:
            actor = LOCAL_OPERATOR if self._is_local(credentials) else None
        else:
            actor = self._inbox.find_actor(
                link.party, link.credential.removeprefix(_KEY_CREDENTIAL_PREFIX)
            )
        return None if actor is None or actor.party != link.party else (actor, link)

    def _unseal_recipient(self, id: str, token: str) -> str | None:
        """Return the person whom a link is for, or None if the link is invalid."""
        link = self._inbox.links.unseal_sign_in(token, id, self._approvals.clock())
        return None if link is None else link.party

    async def _session_actor(self, credentials: RequestCredentials) -> Actor | None:
        """Return the person who is signed in with this browser, or None."""
        try:
            return await self._authenticator.identify_browser(credentials)
        except MalformedMessage:
            # The session has ended. The page asks who the reader is.
            return None

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

    async def _show_to(self, actor: Actor, id: str, recipient: str) -> tuple[int, bytes]:
        """Show a request to a person who has signed in, if the link is for this person."""
        if recipient and self._unseal_recipient(id, recipient) != actor.party:
            return 403, self._sign_in_page(id, _OTHER_PERSON_TEXT, recipient)
        return await self._show_request(actor, id)

    def _sign_in_page(self, id: str, reason: str, recipient: str = "") -> bytes:
        if self._authenticator.sessions is None:
            return _sign_in_page(reason)
        query = f"?{urlencode({'for': recipient})}" if recipient else ""
        return _sign_in_page(reason, f"{PAGE_PATH}{quote(id)}{query}")

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
        form = answer_form(
            token or self._make_token(ask, actor), presentation.confirmation_word(ask)
        )
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


def _sign_in_page(reason: str = _SIGN_IN_TEXT, next_path: str = "") -> bytes:
    """Return the page that asks who the reader is. After a login, the reader is at `next_path`."""
    kind = "" if reason in (_SIGN_IN_TEXT, _LOCAL_MODE_TEXT) else "odd"
    login = ""
    if next_path:
        href = escape(f"/login?{urlencode({'next': next_path})}")
        # A browser sends the cookie of a session only if a page of ours leads to the address.
        login = (
            f'<p><a href="{href}">Sign in</a>, or '
            f'<a href="{escape(next_path)}">go on</a> if you are signed in.</p>'
        )
    return render_page(
        "Comity",
        render_heading("Who are you?"),
        render_paragraph(reason, kind),
        login,
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
