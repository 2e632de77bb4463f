"""What a server asks of people amid a call, and what it is told, in MGP's words. (MGP §13.4)

Read strictly: whoever asks is a stranger, and what it says is shown to people who decide by it.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Raw, Struct, UnsetType

from comity.wire import jsonrpc
from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame, Id

REQUEST: Final = "notifications/mgp.callback.request"
RESPOND: Final = "mgp/callback/respond"
CONFIRM: Final = "confirm"
CANCEL: Final = "cancel"
"""What is answered where nobody has said yes. (D-28)"""

MOST_BYTES: Final = 64 * 1024
LONGEST_ID: Final = 128
LONGEST_MESSAGE: Final = 4_000
MOST_OPTIONS: Final = 32
LONGEST_OPTION: Final = 200
SHORTEST_MS: Final = 1_000
LONGEST_MS: Final = 3_600_000
USUAL_MS: Final = 60_000


class Type(StrEnum):
    """What is asked for; `notification` wants no answer."""

    CONFIRMATION = "confirmation"
    INPUT = "input"
    SELECTION = "selection"
    NOTIFICATION = "notification"


@dataclass(frozen=True, slots=True)
class Callback:
    """One question. `request` is the server's id of the call amid which it asks. (D-24)"""

    id: str
    request: Id
    type: Type
    message: str
    options: tuple[str, ...] = ()
    within: timedelta = timedelta(milliseconds=USUAL_MS)


class _Requested(Struct):
    callback_id: str
    request_id: int | str
    type: str
    message: str
    options: list[str] | None = None
    timeout_ms: int | None = None


class _Named(Struct):
    callback_id: str


class _Responded(Struct):
    callback_id: str
    response: str | None


_requested: Final = msgspec.json.Decoder(_Requested)
_named: Final = msgspec.json.Decoder(_Named)
_responded: Final = msgspec.json.Decoder(_Responded)


def callback_in(params: Raw | UnsetType) -> Callback:
    """The question that these parameters are. Raises MalformedMessage."""
    if params is UNSET or len(params) > MOST_BYTES:
        raise _malformed(f"a callback has parameters, of at most {MOST_BYTES} bytes")
    try:
        found = _requested.decode(params)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(f"a misshapen callback: {error}") from None
    if found.type not in Type:
        raise _malformed(f"no callback is of the type {found.type!r:.40}")
    _check_words(found)
    wanted = USUAL_MS if found.timeout_ms is None else found.timeout_ms
    return Callback(
        found.callback_id,
        found.request_id,
        Type(found.type),
        found.message,
        tuple(found.options or ()),
        timedelta(milliseconds=min(max(wanted, SHORTEST_MS), LONGEST_MS)),
    )


def named_in(params: Raw | UnsetType) -> str | None:
    """By which name a question can be answered that cannot be put; None where by none."""
    if params is UNSET or len(params) > MOST_BYTES:
        return None
    try:
        named = _named.decode(params).callback_id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return named if _is_name(named, LONGEST_ID) else None


def response(callback_id: str, said: object) -> dict[str, object]:
    """The parameters of the answer to one question."""
    return {"callback_id": callback_id, "response": said}


def responded(params: Raw | UnsetType) -> tuple[str, str | None]:
    """Which question is answered, and what is said. Raises MalformedMessage."""
    if params is UNSET or len(params) > MOST_BYTES:
        raise _malformed(f"an answer has parameters, of at most {MOST_BYTES} bytes")
    try:
        found = _responded.decode(params)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(f"a misshapen answer: {error}") from None
    return found.callback_id, found.response


def request_of(callback: Callback, id: str, request: Id, options: Sequence[str]) -> Frame:
    """A server's question as a client is asked it, by an id and amid a call that it knows."""
    params: dict[str, object] = {
        "callback_id": id,
        "request_id": request,
        "type": callback.type,
        "message": callback.message,
    }
    if options:
        params["options"] = list(options)
    if callback.type is not Type.NOTIFICATION:
        params["timeout_ms"] = round(callback.within / timedelta(milliseconds=1))
    return jsonrpc.notification(REQUEST, params)


def with_request(params: Raw, request: Id) -> Raw:
    """The same question, amid a call as its client knows it. (D-24)"""
    return jsonrpc.to_raw({**jsonrpc.members(params), "request_id": request})


def _check_words(found: _Requested) -> None:
    if not _is_name(found.callback_id, LONGEST_ID):
        raise _malformed(f"a callback_id is a text of 1 to {LONGEST_ID} plain characters")
    if not 0 < len(found.message) <= LONGEST_MESSAGE:
        raise _malformed(f"a message has 1 to {LONGEST_MESSAGE} characters")
    options = found.options or []
    if len(options) > MOST_OPTIONS:
        raise _malformed(f"there are at most {MOST_OPTIONS} options")
    if not all(_is_name(each, LONGEST_OPTION) for each in options):
        raise _malformed(f"an option has 1 to {LONGEST_OPTION} plain characters")
    if len({_as_seen(each) for each in options}) < len(options):
        raise _malformed("two options look the same")
    if found.type == Type.SELECTION and not options:
        raise _malformed("a selection has options")


def _is_name(text: str, longest: int) -> bool:
    """Whether a text is shown as what it is, on one line."""
    return 0 < len(text) <= longest and text.isprintable() and text.strip() == text


def _as_seen(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _malformed(because: str) -> MalformedMessage:
    return MalformedMessage(because, INVALID_PARAMS)
