"""Asks of the gateway in a topic: put there to be read, and answered there by who may. (D-47, D-98)

Rule 1: an ask is told as a proposal of `system:inbox`, with what people read of it and no secrets;
        whoever was granted to answer it calls `answer_ask` of that member.
Rule 2: who may answer is judged as at every other door: people alone, by a grant, nobody its own.
Rule 3: only what is answered with yes or no is put into a topic: everybody there would read what
        somebody fills in.
Rule 4: each node tells its own members, under one id, so that nobody hears of an ask twice.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from comity.kernel.approvals import OPEN, Approvals
from comity.kernel.chores import Chores
from comity.kernel.furnished import INBOX, BuiltIn, Furnished, judged_as
from comity.kernel.seats import Said, Seat
from comity.rules import ask_words, topic_requests
from comity.rules.topics import Refusal, Violation
from comity.wire import envelope as wire
from comity.wire import jsonrpc, mcp
from comity.wire.asks import META, Ask, Kind, State, Verdict
from comity.wire.envelope import PROPOSAL, REQUEST, Envelope, Heading
from comity.wire.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MalformedMessage,
    Unavailable,
)
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.parties import GATEWAY

ANSWER_ASK: Final = "answer_ask"
LIST_ASKS: Final = "list_asks"
LONGEST_REASON: Final = 1000
_SHOWN: Final = ("id", "kind", "asker", "server", "tool", "what", "risk", "about", "quorum")
_YES_OR_NO: Final = (
    *(Kind.CONFIRM, Kind.PERMISSION, Kind.REGISTRATION, Kind.SCOPE, Kind.BUDGET, Kind.SAMPLING),
)
_VERDICTS: Final = (Verdict.ACCEPT, Verdict.DECLINE)
_TOOLS: Final[tuple[Mapping[str, object], ...]] = (
    {
        "name": LIST_ASKS,
        "description": "The questions that wait for an answer, as far as you may see them.",
        "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": ANSWER_ASK,
        "description": "Answer a question of the gateway. Only people do, and nobody its own.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "ask": {"type": "string", "description": "The whole id of the ask."},
                "verdict": {"enum": list(_VERDICTS)},
                "reason": {"type": "string", "maxLength": LONGEST_REASON},
            },
            "required": ["ask", "verdict"],
            "additionalProperties": False,
        },
    },
)
_ABOUT: Final[Mapping[str, object]] = {
    "protocolVersion": mcp.LATEST_HANDSHAKE,
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "comity-inbox", "version": "1"},
}

type Places = Callable[[], Iterable[Furnished]]


class TopicAsks:
    """The inbox, as a member of topics."""

    def __init__(self, approvals: Approvals, places: Places) -> None:
        self._approvals = approvals
        self._places = places
        self._chores = Chores("asks in topics")

    # What is told

    def heard(self, ask: Ask) -> None:
        """An ask is new, or other than before: wherever asks are put, it is told."""
        if ask.kind not in _YES_OR_NO or (ask.is_open and ask.answers):
            return
        for place in self._places():
            if place.has_asks and place.inbox is not None:
                self._put(place, place.inbox, ask)

    def _put(self, place: Furnished, inbox: BuiltIn, ask: Ask) -> None:
        put = _id(place, ask, "")
        if ask.is_open:
            arguments = {"ask": ask.id, "verdict": Verdict.ACCEPT}
            params = {"name": ANSWER_ASK, "arguments": arguments, "_meta": {META: self._shown(ask)}}
            kind = f"{PROPOSAL}:{mcp.CALL_TOOL}:{ANSWER_ASK}"
            payload = {"method": mcp.CALL_TOOL, "params": params}
            self._tell(place, place.heading(id=put), (inbox.party, kind), payload)
        elif ask.state is not State.USED:
            told = {"notice": "ask_ended", "ask": ask.id, "state": ask.state}
            words = ask_words.state_of(ask)[:1000]
            heading = place.heading((), put, _id(place, ask, ask.state))
            self._tell(place, heading, (GATEWAY, wire.NOTICE), {**told, "message": words})

    def _tell(
        self,
        place: Furnished,
        heading: Heading,
        said: tuple[str, str],
        payload: Mapping[str, Any],
    ) -> None:
        """Every node tells its own members; of what it has told already it is silent."""
        envelope = wire.written(heading, *said, payload)
        data = wire.encode(envelope)
        fits = len(data) <= place.room.terms.limits.envelope_bytes
        if fits and heading.id not in place.room.trail:
            place.room.deliver(Said(data, envelope))

    def _shown(self, ask: Ask) -> dict[str, object]:
        fields = ask_words.fields(ask)
        told = {name: fields[name] for name in _SHOWN}
        url = f"{self._approvals.options.public_url}/asks/{ask.id}"
        return {**told, "expires_at": ask.expires_at.isoformat(), "url": url}

    # What is asked of it

    def hear(self, place: Furnished, seat: Seat, said: Said) -> None:
        envelope = said.envelope
        is_asked = envelope.kind.startswith(f"{REQUEST}:") and INBOX in envelope.to
        if not is_asked or place.inbox is None or seat.is_built_in:
            return
        try:
            frame = topic_requests.request_in(envelope)
        except MalformedMessage as error:
            place.mismatched(seat, envelope, str(error))
            return
        kind = topic_requests.whole_kind(REQUEST, frame)
        if not seat.may.cover(kind):
            because = f"None of your capabilities covers '{kind[:200]}'"
            place.refuse(seat, envelope, Refusal(Violation.CAPABILITY, because))
        elif frame.id is not UNSET:
            self._chores.start(self._answer(place, place.inbox, seat, envelope, frame))

    async def settle(self) -> None:
        await self._chores.finish()

    def stop(self) -> None:
        self._chores.cancel()

    async def _answer(
        self, place: Furnished, inbox: BuiltIn, seat: Seat, envelope: Envelope, frame: Frame
    ) -> None:
        said: dict[str, Any] = {"jsonrpc": "2.0", "id": frame.id}
        try:
            said["result"] = await self._result(seat, frame)
        except (MalformedMessage, Unavailable) as error:
            said["error"] = jsonrpc.failure(None, error.fault, str(error)[:1000]).error
        kind = topic_requests.response_kind(envelope.kind)
        heading = place.heading((seat.party,), envelope.id)
        try:
            inbox.say(heading, kind, said)
        except MalformedMessage as error:
            failure = jsonrpc.failure(None, error.fault, f"the answer does not fit: {error}")
            inbox.say(heading, kind, {"jsonrpc": "2.0", "id": frame.id, "error": failure.error})

    async def _result(self, seat: Seat, frame: Frame) -> Mapping[str, object]:
        values = topic_requests.values(frame)
        if frame.method == mcp.INITIALIZE:
            return _ABOUT
        if frame.method == mcp.PING:
            return {}
        if frame.method == mcp.LIST_TOOLS:
            return {"tools": _TOOLS}
        if frame.method != mcp.CALL_TOOL:
            raise MalformedMessage("the inbox has tools, and nothing else", METHOD_NOT_FOUND)
        name, arguments = values.get("name"), values.get("arguments")
        if name == LIST_ASKS:
            return await self._list(seat)
        if name != ANSWER_ASK or not isinstance(arguments, dict):
            raise MalformedMessage(f"the inbox has {LIST_ASKS} and {ANSWER_ASK}", INVALID_PARAMS)
        try:
            return await self._take_answer(seat, arguments)  # pyright: ignore[reportUnknownArgumentType]  # JSON: any values
        except MalformedMessage as error:
            return _text(str(error), is_error=True)

    async def _list(self, seat: Seat) -> Mapping[str, object]:
        found, _ = await self._approvals.page(judged_as(seat.actor), OPEN)
        shown = [self._shown(ask) for ask in ask_words.ordered(found)[:50]]
        lines = [f"{ask['id']}: {ask['what']}" for ask in shown]
        told = "\n".join(lines) or "Nothing waits for an answer that you may see."
        return {**_text(told), "structuredContent": {"asks": shown}}

    async def _take_answer(self, seat: Seat, said: Mapping[str, object]) -> Mapping[str, object]:
        id, verdict, reason = (said.get(name, "") for name in ("ask", "verdict", "reason"))
        if not isinstance(id, str) or not isinstance(reason, str) or verdict not in _VERDICTS:
            raise MalformedMessage(
                "say {ask: its id, verdict: accept or decline, reason: words}", INVALID_PARAMS
            )
        actor = judged_as(seat.actor)
        ask = await self._approvals.get(actor, id)
        if ask.kind not in _YES_OR_NO:
            raise MalformedMessage("this one is answered elsewhere: `comity asks`", INVALID_PARAMS)
        if ask.asker == seat.party:
            # Of several members whom one person plays, each is somebody of its own here.
            actor = seat.actor
        answered = await self._approvals.answer(
            actor, id, Verdict(str(verdict)), reason[:LONGEST_REASON]
        )
        return _text(ask_words.state_of(answered))


def _id(place: Furnished, ask: Ask, state: str) -> str:
    """What an ask is called in a topic, the same at every node."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"comity:{place.topic}:{ask.id}:{state}"))


def _text(said: str, *, is_error: bool = False) -> dict[str, object]:
    found: dict[str, object] = {"content": [{"type": "text", "text": said}]}
    return {**found, "isError": True} if is_error else found
