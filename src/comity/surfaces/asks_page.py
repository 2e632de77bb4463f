"""The page at /asks/{id} where a person approves or denies, without a script, also on a phone.

Rule 1: a GET decides nothing: scanners of mail open every link they see.
Rule 2: whoever has not shown who it is, by a link that was made for it or by a key, is told
        nothing: the page is the same for every id, whether or not there is such an ask.
Rule 3: a link, and what follows a key, is good for one party and one ask. That the party is known,
        let in, a person and still granted to answer is looked at each time.
Rule 4: a key is in no address, no log and no answer.
"""

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Final
from urllib.parse import parse_qs

from comity.kernel.identity import Arrival, Identity
from comity.kernel.inbox import Inbox
from comity.rules import ask_words
from comity.rules.ask_links import PATH, Link
from comity.rules.keys import looks_like_key
from comity.rules.phrases import start_sentence
from comity.surfaces import asks_html, doorway
from comity.surfaces.asks_html import Shown
from comity.surfaces.doorway import Receive, Scope, Send
from comity.surfaces.gateway import Door
from comity.wire.asks import Ask, Kind, State, Verdict
from comity.wire.errors import INVALID_PARAMS, UNAUTHENTICATED, MalformedMessage, Unavailable
from comity.wire.parties import LOCAL_OPERATOR, Actor

log = logging.getLogger(__name__)

BODY_BYTES: Final = 16 * 1024
FIELDS: Final = 8
AFTER_A_KEY: Final = timedelta(minutes=10)
"""How long a page may be looked at before its key has to be shown again."""

_KEY: Final = "key:"
_ANSWERED: Final = {"accept": Verdict.ACCEPT, "decline": Verdict.DECLINE}
_SIMPLE: Final = frozenset(
    {
        *(Kind.CONFIRM, Kind.PERMISSION, Kind.NOTICE, Kind.REGISTRATION, Kind.SCOPE),
        *(Kind.BUDGET, Kind.SAMPLING),
    }
)
_WHO: Final = "Somebody's answer is asked for. Show who you are to see what it is about."
_LOCAL: Final = (
    "To answer this, run `comity approve` or `comity deny`. To answer it in the browser, open the "
    "link that `comity asks link` prints. If you have an API key, you can show it here."
)
_INVALID: Final = (
    "This link is not valid, or not any more. If you may answer, your API key shows it."
)
_NOT_YOURS: Final = "There is no such ask, or it is not yours to see."
_DONE: Final = {
    State.ACCEPTED: "You approved it. It may run once, exactly as it was shown.",
    State.USED: "You approved it, and it has been used for its one call.",
    State.DECLINED: "You denied it. It does not run.",
    State.PENDING: "Your word is kept. More people have to approve before it runs.",
}


class AsksPage:
    """The door of all paths that begin with /asks/."""

    def __init__(self, inbox: Inbox, identity: Identity) -> None:
        self._inbox = inbox
        self._approvals = inbox.approvals
        self._identity = identity

    @property
    def doors(self) -> dict[str, Door]:
        return {PATH: self.visit}

    async def visit(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        method = scope["method"]
        if method not in ("GET", "HEAD", "POST"):
            await doorway.empty(send, 405, ((b"allow", b"GET, HEAD, POST"),))
            return
        id: str = scope["path"].removeprefix(PATH)
        client = scope.get("client")
        is_near = doorway.is_loopback_name(headers.get(b"host", b""))
        arrival = Arrival(headers, client[0] if client else "", PATH, is_near)
        try:
            if method == "POST":
                fields = await _posted(headers, receive)
                status, body = await self._post(id, fields, arrival)
            else:
                token = _fields(scope.get("query_string", b"")).get("t", "")
                status, body = await self._look(id, token, arrival)
        except (MalformedMessage, Unavailable) as refused:
            status, body = _refused(refused)
        await _answer(send, status, b"" if method == "HEAD" else body)

    async def _look(self, id: str, token: str, arrival: Arrival) -> tuple[int, bytes]:
        """What somebody sees who only opens the page."""
        if token:
            found = self._linked(id, token, arrival)
            if found is None:
                return 403, _who(_INVALID)
            return await self._show(found[0], id, token)
        return 200, _who(_LOCAL) if self._is_near(arrival) else _who()

    async def _post(
        self, id: str, fields: Mapping[str, str], arrival: Arrival
    ) -> tuple[int, bytes]:
        token = fields.get("t", "")
        if not token:
            return await self._show(await self._holder(fields.get("key", ""), arrival), id)
        verdict = _ANSWERED.get(fields.get("verdict", ""))
        found = self._linked(id, token, arrival)
        if found is None:
            return 403, _who(_INVALID)
        if verdict is None:
            raise MalformedMessage("choose to approve or to deny", INVALID_PARAMS)
        reason = fields.get("reason", "").strip()[: asks_html.LONGEST_REASON]
        answered = await self._approvals.answer(found[0], id, verdict, reason)
        said = _DONE.get(answered.state, ask_words.state_of(answered))
        kind = "done" if verdict is Verdict.ACCEPT else "done denied"
        return 200, self._page(answered, before=asks_html.paragraph(said, kind))

    # Who it is.

    def _linked(self, id: str, token: str, arrival: Arrival) -> tuple[Actor, Link] | None:
        """Who may come by a link; None where it is not ours, or its party is not what it was."""
        link = self._inbox.links.unseal(token, id, self._approvals.clock())
        if link is None:
            return None
        if link.credential == LOCAL_OPERATOR.credential:
            actor = LOCAL_OPERATOR if self._is_near(arrival) else None
        else:
            actor = self._inbox.named(link.party, link.credential.removeprefix(_KEY))
        return None if actor is None or actor.party != link.party else (actor, link)

    def _is_near(self, arrival: Arrival) -> bool:
        """Whether this comes from the machine of a gateway in local mode."""
        try:
            self._identity.local(arrival)
        except MalformedMessage:
            return False
        return True

    async def _holder(self, key: str, arrival: Arrival) -> Actor:
        """Who holds a key; only a few wrong ones are looked at from one address. Raises."""
        shown = b"Bearer " + key.strip().encode("utf-8", "replace")
        # Tokens are for programs; and what is no key at all is a guess like any other.
        if not looks_like_key(shown[7:]):
            self._identity.guesses.failed(arrival.peer)
            raise MalformedMessage("this is no API key of this gateway", UNAUTHENTICATED)
        return await self._identity.identify(arrival._replace(headers={b"authorization": shown}))

    # What it is shown.

    async def _show(self, actor: Actor, id: str, token: str = "") -> tuple[int, bytes]:
        try:
            ask = await self._approvals.get(actor, id)
        except MalformedMessage:
            return 403, asks_html.page("Comity", asks_html.heading(_NOT_YOURS))
        because = self._approvals.why_not(ask, actor)
        if not ask.is_open or ask.expires_at <= self._approvals.clock():
            return 200, self._page(ask)
        if because is not None:
            who = start_sentence(self._approvals.approvers(ask, actor))
            said = f"You cannot answer it: {because}. {who} can."
            return 200, self._page(ask, asks_html.paragraph(said))
        if ask.kind not in _SIMPLE:
            how = f"It wants more than yes or no; answer it by /api/asks/{ask.id}/answer."
            return 200, self._page(ask, asks_html.paragraph(how))
        form = asks_html.answer_form(token or self._token(ask, actor))
        return 200, self._page(ask, form, likeness=await self._inbox.likeness(ask))

    def _token(self, ask: Ask, actor: Actor) -> str:
        until = min(ask.expires_at, self._approvals.clock() + AFTER_A_KEY)
        return self._inbox.links.seal(Link(ask.id, actor.party, until, actor.credential))

    def _page(self, ask: Ask, after: str = "", before: str = "", likeness: str = "") -> bytes:
        now = self._approvals.clock()
        rows = ask_words.rows(ask, now, likeness)
        shown = Shown(ask_words.what(ask), ask_words.risk_of(ask), rows)
        return asks_html.page(ask_words.what(ask), before, asks_html.told(shown), after)


def _who(because: str = _WHO) -> bytes:
    kind = "" if because in (_WHO, _LOCAL) else "odd"
    return asks_html.page(
        "Comity",
        asks_html.heading("Who are you?"),
        asks_html.paragraph(because, kind),
        asks_html.key_form(),
    )


def _refused(error: MalformedMessage | Unavailable) -> tuple[int, bytes]:
    """A refusal in the page's own form; a wrong key may be put right at once."""
    status, _ = doorway.refusal(error)
    if error.fault is UNAUTHENTICATED:
        return status, _who(_sentence(error))
    said = asks_html.paragraph(_sentence(error))
    return status, asks_html.page("Comity", asks_html.heading("That did not work"), said)


def _sentence(error: MalformedMessage | Unavailable) -> str:
    return f"{start_sentence(ask_words.one_line(str(error)))}."


async def _posted(headers: Mapping[bytes, bytes], receive: Receive) -> dict[str, str]:
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/x-www-form-urlencoded":
        raise MalformedMessage("send the form of this page", INVALID_PARAMS)
    if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
        raise MalformedMessage("pages of other sites may post nothing here", INVALID_PARAMS)
    return _fields(await doorway.read_body(receive, headers, BODY_BYTES))


def _fields(written: bytes) -> dict[str, str]:
    try:
        found = parse_qs(written.decode("ascii"), max_num_fields=FIELDS, errors="replace")
    except ValueError:
        raise MalformedMessage("this cannot be read", INVALID_PARAMS) from None
    return {name: values[-1] for name, values in found.items()}


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [*asks_html.HEADERS, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
