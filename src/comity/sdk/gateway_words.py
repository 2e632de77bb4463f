"""What the gateway says of the topic: welcome, presence, errors, notices, and loss. (MCPx §3.4)

Its word is taken; still it is read as if a stranger had said it, so that no mistake of a gateway
breaks a member.
"""

from collections.abc import Callable
from typing import Final, cast

from comity.rules.capabilities import is_capability
from comity.sdk.events import Event, Missed, Notice, Payload, Presence, Refused, Welcome
from comity.wire import envelope as wire
from comity.wire.envelope import Envelope

MOST_CAPABILITIES: Final = 1_000
_SHOWN: Final = 1_000

type Member = tuple[str, tuple[str, ...]]


def from_gateway(envelope: Envelope, payload: Payload, me: str) -> Event | str | None:
    """What it tells us; a text says why that cannot be, and None is meant for another."""
    read = _READ.get(envelope.kind)
    if read is None:
        return "the gateway sends no such kind"
    if me and envelope.to and me not in envelope.to:
        return None
    if envelope.kind != wire.WELCOME and not me:
        return "the gateway spoke before its welcome"
    return read(envelope, payload)


def _welcome(envelope: Envelope, payload: Payload) -> Event | str:
    you, others = _member(payload.get("you")), payload.get("participants", [])
    if you is None or not isinstance(others, list):
        return "a welcome says who you are, and who else is there"
    if envelope.to and you[0] not in envelope.to:
        return "the welcome is another's"
    members = [_member(each) for each in cast("list[object]", others)]
    known = dict(each for each in members if each is not None and each[0] != you[0])
    return Welcome(you[0], you[1], known)


def _presence(envelope: Envelope, payload: Payload) -> Event | str:
    event, who = payload.get("event"), _member(payload.get("participant"))
    if event not in (wire.JOIN, wire.LEAVE) or who is None:
        return "presence says who has come or gone"
    return Presence(str(event), *who)


def _error(envelope: Envelope, payload: Payload) -> Event | str:
    error, message = payload.get("error"), payload.get("message", "")
    if not isinstance(error, str) or not isinstance(message, str):
        return "an error has a name and a message"
    attempted = payload.get("attempted_kind", "")
    return Refused(
        envelope.correlation_id, error[:_SHOWN], message[:_SHOWN], str(attempted)[:_SHOWN]
    )


def _notice(envelope: Envelope, payload: Payload) -> Event | str:
    notice, message = payload.get("notice"), payload.get("message", "")
    if not isinstance(notice, str) or not isinstance(message, str):
        return "a notice has a name and a message"
    ask = str(payload.get("ask") or "")
    return Notice(envelope.correlation_id, notice[:_SHOWN], message[:_SHOWN], ask[:_SHOWN])


def _missed(envelope: Envelope, payload: Payload) -> Event | str:
    count = payload.get("count")
    if type(count) is not int or count < 0:
        return "what was missed is counted"
    first, last, because = (
        str(payload.get(name) or "")[:_SHOWN] for name in ("first", "last", "because")
    )
    return Missed(count, first, last, because)


def _member(value: object) -> Member | None:
    if not isinstance(value, dict):
        return None
    said = cast("dict[str, object]", value)
    id, listed = said.get("id"), said.get("capabilities")
    if not isinstance(id, str) or not id or not isinstance(listed, list | None):
        return None
    given = cast("list[object]", listed or [])[:MOST_CAPABILITIES]
    return id, tuple(each for each in given if isinstance(each, str) and is_capability(each))


_READ: Final[dict[str, Callable[[Envelope, Payload], Event | str]]] = {
    wire.WELCOME: _welcome,
    wire.PRESENCE: _presence,
    wire.ERROR: _error,
    wire.NOTICE: _notice,
    wire.MISSED: _missed,
}
