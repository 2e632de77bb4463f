"""Calls that tell of themselves before their end: pieces, progress, cancellation. (MGP §12)

Rule 1: a server is asked to stream where it negotiated that, and where somebody hears it: a client
        that asked for pieces, or, where the operator lets it, one that hears MCP's progress.
Rule 2: what a server tells belongs to the call that it names, open on its link, that was asked to
        stream; all else is dropped and counted. To its client a call has the client's own id.
Rule 3: whoever reads too slowly loses pieces, is told how many, and has the whole answer.
Rule 4: a call is cancelled by the session that made it. Where there are none (2026-07-28) it is by
        the party that gave it a name, `stream_id`: ids there mean nothing beyond their own stream.
"""

import asyncio
import itertools
import logging
from collections import Counter
from typing import Final
from weakref import WeakValueDictionary

from msgspec import Raw

from comity.kernel.across import Across
from comity.kernel.call import Call
from comity.kernel.call_stream import CallStream
from comity.kernel.chores import Chores
from comity.kernel.own_call import OwnCall
from comity.kernel.own_methods import Asked, OwnMethods
from comity.kernel.pulse import Speaking
from comity.kernel.question import Client, Errand
from comity.rules import streaming as rules
from comity.rules.negotiation import Terms
from comity.wire import jsonrpc, mcp
from comity.wire import streaming as wire
from comity.wire.errors import INVALID_PARAMS, MalformedMessage, Unavailable
from comity.wire.exposition import Family
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.negotiation import Extension

log = logging.getLogger(__name__)

CANCEL_SECONDS: Final = 2.0
"""How long a server may take to say that it has heard of a cancellation."""

_PASSED: Final = "passed"
_DROPPED: Final = "dropped"
_STRAY: Final = "stray"
_WORD: Final = Extension.STREAMING.encode()


class Streaming:
    """Every call that streams, by whoever may cancel it."""

    def __init__(self, *, for_progress: bool = True) -> None:
        # Whether a server is asked to stream for clients that only know MCP's progress.
        self.for_progress = for_progress
        self._named: WeakValueDictionary[tuple[str, str], Call] = WeakValueDictionary()
        self._told: Counter[tuple[str, str]] = Counter()
        self._tokens = itertools.count(1)
        self._chores = Chores("calls that stream")

    def join(self, methods: OwnMethods) -> None:
        """Have cancellations answered at the door of all servers."""
        methods.add(wire.CANCEL, Extension.STREAMING, self._cancel)

    # On the way to a server.

    def attend(self, link: Speaking, call: Call, frame: Frame) -> Frame:
        """The call as it goes out to its server. Raises MalformedMessage."""
        if link.mgp is None and call.client is not None and call.client.mgp is None:
            # Between a plain client and a plain server there is nothing to look for.
            return frame
        front = call.front if isinstance(call, Across) else call
        if front is None or isinstance(front, OwnCall):
            return frame
        if front.is_detached:
            # Its client asks after it, and hears nothing meanwhile.
            return rules.unasked(frame)
        is_mgp = (front.client is not None or _speaks_of_it(front)) and _streams(front.terms())
        can_stream = _streams(link.mgp) or (is_mgp and _greets(front.client))
        if not is_mgp and not can_stream:
            return frame
        token = rules.token_in(front.params)
        if not is_mgp and (token is None or not self.for_progress):
            return rules.unasked(frame)
        asked, name = wire.asked_in(frame) if is_mgp else (False, None)
        stream = self._begin(front, asked=asked, is_mgp=is_mgp, token=token)
        if name is not None and front.client is None:
            self._name(front, name)
        is_streamed = can_stream and (asked or not is_mgp) and not stream.pieces.heard
        stream.is_again = stream.is_again or bool(stream.pieces.heard)
        call.is_streamed = is_streamed
        named = f"comity-{next(self._tokens)}" if is_mgp else None
        return rules.asking(frame, named) if is_streamed else rules.unasked(frame, named)

    def _begin(self, front: Call, *, asked: bool, is_mgp: bool, token: Raw | None) -> CallStream:
        if isinstance(front.stream, CallStream):
            return front.stream
        stream = CallStream(asked=asked, hears=is_mgp, token=token)
        front.stream = stream
        stream.make_room(front.outbox)
        return stream

    def _name(self, front: Call, name: str) -> None:
        key = (front.outbox.actor.party, name)
        other = self._named.get(key)
        if other is not None and other is not front and _is_open(other):
            raise MalformedMessage("this stream_id is in use already", INVALID_PARAMS)
        self._named[key] = front

    # What a server tells.

    def heard(self, server: str, frame: Frame, amid: Errand | None) -> bool:
        """Pass on what is told of a call, if it is one that streams; whether it is."""
        front = amid.front if isinstance(amid, Across) else amid
        stream = front.stream if isinstance(front, Call) else None
        is_asked = frame.method != wire.CHUNK or (isinstance(amid, Call) and amid.is_streamed)
        if amid is None or not isinstance(stream, CallStream) or not is_asked:
            self._told[server, _STRAY] += 1
            log.info("server %r: %s of no call that streams", server, frame.method)
            return False
        before = stream.passed
        amid.told(frame)
        if frame.method == wire.CHUNK:
            self._told[server, _PASSED if stream.passed > before else _DROPPED] += 1
        return True

    # Cancellation.

    def stops(self, link: Speaking, errand: Errand | None, told: Frame) -> bool:
        """Have a server end a call that streams; in the modern era MCP's own words do."""
        if not isinstance(errand, Call) or not errand.is_streamed or link.hello is None:
            return False
        self._chores.start(_stopped(link, errand.minted, told), at_once=True)
        return True

    async def _cancel(self, asked: Asked) -> dict[str, object]:
        return self.cancel(asked.session, asked.call, asked.frame)

    def cancel(self, client: Client | None, by: Call, frame: Frame) -> dict[str, object]:
        """The answer to a cancellation. Raises MalformedMessage."""
        named, reason = wire.cancel_in(frame.params)
        if client is not None:
            found = client.conversation.taken(named)
        else:
            found = self._named.get((by.outbox.actor.party, str(named)))
        if not isinstance(found, Call) or found is by or not _is_open(found):
            return wire.too_late()
        said = UNSET if reason is None else jsonrpc.to_raw(rules.cut(reason))
        return _cut_short(found, None if said is UNSET else said)

    def families(self) -> list[Family]:
        return [
            Family(
                "comity_stream_chunks_total",
                "counter",
                "Pieces of results: passed on, dropped for a slow reader, or of no such call.",
                [
                    ((("server", server), ("outcome", outcome)), number)
                    for (server, outcome), number in self._told.items()
                ],
            )
        ]


def _cut_short(call: Call, reason: Raw | None) -> dict[str, object]:
    stream = call.stream if isinstance(call.stream, CallStream) else None
    if call.method != mcp.CALL_TOOL:
        call.withdraw(reason)
        return wire.cancelled([])
    stream = CallStream() if stream is None else stream
    call.stream = stream
    answer = stream.cut_short(call)
    call.cut_short(answer, reason)
    return wire.cancelled(stream.pieces.content(), truncated=stream.pieces.truncated)


async def _stopped(link: Speaking, minted: int, told: Frame) -> None:
    """Say it in MGP's words, and in MCP's to a server that does not understand them after all."""
    params = jsonrpc.params_of(told)
    reason = {"reason": params["reason"]} if "reason" in params else {}
    try:
        async with asyncio.timeout(CANCEL_SECONDS):
            answer = await link.request(wire.CANCEL, {"request_id": minted, **reason})
    except (Unavailable, MalformedMessage, TimeoutError) as error:
        log.info("server %r did not answer a cancellation: %s", link.server, error)
        link.tell(told)
        return
    if answer.error is not UNSET:
        link.tell(told)


def _is_open(call: Call) -> bool:
    return not (call.is_concluded or call.outbox.final)


def _greets(client: Client | None) -> bool:
    """Whether a client greets its server itself: then its own terms are those of the link."""
    return client is not None and client.speaks_mgp_with_servers


def _streams(terms: Terms | None) -> bool:
    return terms is not None and Extension.STREAMING in terms.extensions


def _speaks_of_it(call: Call) -> bool:
    """Whether a modern request may have negotiated it; most say nothing, and are not read."""
    return call.params is not UNSET and _WORD in bytes(call.params)
