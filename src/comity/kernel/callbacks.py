"""Callbacks of servers: heard amid a call, put before people, and answered once. (MGP §13.4)

Rule 1: a callback belongs to the call that it names, which is open on its link, and to no other.
Rule 2: callbacks can be lost or repeated: one that is known already is not asked anew, and where it
        has its answer, that is said again. (D-28)
Rule 3: whoever asks too much, or what cannot be understood, is answered as if nobody had said yes.
Rule 4: a client that negotiated with the server itself is called back itself, by its own id. (D-24)
        One that negotiated with the gateway is too, by an id of the gateway's, amid its own calls,
        and where it may answer; people can answer all the same, and the first who does counts.
"""

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Final

from comity.kernel.call import Call
from comity.kernel.inquiries import Asked, Inquiries, Inquiry, call_of
from comity.kernel.listing import envelope
from comity.kernel.pulse import Speaking
from comity.kernel.question import Errand
from comity.rules.callbacks import (
    KINDS,
    MOST_REMEMBERED,
    digest,
    options_of,
    response_to,
    silence,
)
from comity.wire import jsonrpc, mcp
from comity.wire.asks import Ask
from comity.wire.callbacks import (
    CANCEL,
    RESPOND,
    Callback,
    Type,
    callback_in,
    named_in,
    request_of,
    response,
    with_request,
)
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.negotiation import Extension

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0
"""How long a server may take to say that it heard its answer."""

MOST_REFUSED: Final = 16
"""How many refusals a server can have on their way at once; it asked for each of them."""


@dataclass(slots=True, eq=False)
class _Known:
    callback: Callback
    errand: Call
    said: object = UNSET


class Callbacks:
    """Every callback amid a call that is still open, and what was answered to it."""

    def __init__(self, inquiries: Inquiries) -> None:
        self._inquiries = inquiries
        self._known: dict[tuple[Speaking, str], _Known] = {}
        self._amid: dict[Errand, list[tuple[Speaking, str]]] = {}
        self._refused: Counter[Speaking] = Counter()
        inquiries.endings.append(self._over)

    def __len__(self) -> int:
        return len(self._known)

    def called_back(self, link: Speaking, frame: Frame, amid: Errand | None) -> bool:
        """Whether a callback is taken care of. Nothing is raised, whatever it says."""
        if link.mgp is None or Extension.BIDIRECTIONAL not in link.mgp.extensions:
            return False
        try:
            callback = callback_in(frame.params)
            errand, call = _amid_of(link, callback, amid)
        except MalformedMessage as error:
            self._refuse(link, named_in(frame.params), CANCEL, str(error))
            return True
        if _negotiated(call):
            assert frame.params is not UNSET
            own = with_request(frame.params, call.asker_id)
            call.told(jsonrpc.with_params(frame, own))
            return True
        self._hear(link, callback, errand, call)
        return True

    def _hear(self, link: Speaking, callback: Callback, errand: Call, call: Call) -> None:
        known = self._known.get((link, callback.id))
        if known is None:
            self._take(link, callback, errand, call)
        elif known.callback != callback or known.errand is not errand:
            # Answered, it would be taken for an answer to the other one.
            log.warning("server %r uses a callback_id for two questions", link.server)
        elif known.said is not UNSET:
            self._say_again(link, callback.id, known.said)

    def _take(self, link: Speaking, callback: Callback, errand: Call, call: Call) -> None:
        full = self._inquiries.why_full(errand, link.server)
        if full is None and len(self._amid.get(errand, ())) >= MOST_REMEMBERED:
            full = f"{MOST_REMEMBERED} questions were asked amid this call already"
        if full is not None:
            self._refuse(link, callback.id, silence(callback.type), full)
            return
        known = self._known[link, callback.id] = _Known(callback, errand)
        self._amid.setdefault(errand, []).append((link, callback.id))
        self._inquiries.follow(link.conversation)
        asked = Asked(
            link.server,
            KINDS[callback.type],
            callback.message,
            callback.within,
            lambda name: digest(link.server, callback, name),
            options_of(callback),
        )
        ask = self._inquiries.ask_of(asked, call)
        if callback.type is Type.NOTIFICATION:
            self._inquiries.show(ask)
            _call_back(callback, call, ask)
            return

        async def deliver(ended: Ask | None) -> None:
            known.said = silence(callback.type) if ended is None else response_to(callback, ended)
            await _respond(link, callback.id, known.said)

        inquiry = Inquiry(errand, call, link.server, ask, deliver)
        if ask.own and not call.outbox.actor.lacks_token:
            inquiry.opened = partial(_call_back, callback, call)
        self._inquiries.begin(inquiry)

    def _say_again(self, link: Speaking, name: str, said: object) -> None:
        if self._refused[link] < MOST_REFUSED:
            self._refused[link] += 1
            self._inquiries.chores.start(self._respond_now(link, name, said))

    def _refuse(self, link: Speaking, name: str | None, said: str | None, because: str) -> None:
        log.info("server %r calls back in vain: %s", link.server, because)
        # What has a name that is known has an answer of its own, now or later.
        if name is not None and (link, name) not in self._known:
            self._say_again(link, name, said)

    async def _respond_now(self, link: Speaking, name: str, said: object) -> None:
        try:
            await _respond(link, name, said)
        finally:
            self._refused[link] -= 1
            if self._refused[link] <= 0:
                del self._refused[link]

    def _over(self, errand: Errand) -> None:
        for key in self._amid.pop(errand, ()):
            self._known.pop(key, None)


def _amid_of(link: Speaking, callback: Callback, amid: Errand | None) -> tuple[Call, Call]:
    """The call that a callback names, at the server and at its client. Raises MalformedMessage."""
    named = callback.request
    errand = link.conversation.amid(named) if isinstance(named, int) else None
    call = call_of(errand)
    if not isinstance(errand, Call) or call is None:
        raise MalformedMessage("request_id names no call that is open on this link")
    if amid is not None and amid is not errand:
        raise MalformedMessage("request_id names another call than the one that it came with")
    return errand, call


def _negotiated(call: Call) -> bool:
    """Whether the client negotiated callbacks with the server itself; what another node says of its
    client is that node's business."""
    terms = call.terms() if call.speaks_mgp_with_server() else None
    is_agreed = terms is not None and Extension.BIDIRECTIONAL in terms.extensions
    return is_agreed and not call.is_remote


def _call_back(callback: Callback, call: Call, ask: Ask) -> None:
    """Ask the client on the stream of its call, if it negotiated that with the gateway."""
    terms = call.terms() if call.is_for_all_servers else None
    if terms is not None and Extension.BIDIRECTIONAL in terms.extensions:
        asked = request_of(callback, ask.id, call.asker_id, options_of(callback))
        call.outbox.put(jsonrpc.encode(asked))


async def _respond(link: Speaking, name: str, said: object) -> None:
    params: dict[str, object] = response(name, said)
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if link.hello is None:
        params["_meta"] = envelope()
        headers = ((mcp.METHOD_HEADER, RESPOND.encode()),)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await link.request(RESPOND, params, headers)
    except (Unavailable, MalformedMessage, TimeoutError) as error:
        log.info("server %r did not hear the answer to its callback: %s", link.server, error)
        return
    refused = jsonrpc.error_of(answer)
    if refused is not None:
        log.info("server %r refused the answer to its callback: %s", link.server, refused.message)
