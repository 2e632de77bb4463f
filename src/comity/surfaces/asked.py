"""One question or order of an operator's under /api, read, and the rooms that answer it.

Reception has let in only whom the grants let read here, or write where something is changed. What
changes something is guarded once more: no page of another site may do it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, cast
from urllib.parse import parse_qs

from comity.surfaces import doorway
from comity.surfaces.doorway import Receive, Scope, Send
from comity.surfaces.gateway import ACTOR
from comity.surfaces.reception import OPERATORS
from comity.wire import jsonrpc
from comity.wire.errors import (
    INVALID_PARAMS,
    ORIGIN_REFUSED,
    WRONG_CONTENT_TYPE,
    MalformedMessage,
    Misconfigured,
)
from comity.wire.parties import NOBODY, Actor

QUERY_FIELDS: Final = 16
BODY_BYTES: Final = 256 * 1024

type View = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody wants of a room: `place` is the path below the room's name."""

    method: str
    place: tuple[str, ...]
    query: Mapping[str, str]
    body: Mapping[str, object]
    actor: Actor


class Room(Protocol):
    """All that operators find under one name."""

    async def __call__(self, asked: Asked) -> View: ...


async def visit(
    room: Room, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
) -> None:
    """Ask a room, and tell what it answers."""
    method: str = scope["method"]
    if method not in ("GET", "POST", "PUT", "DELETE"):
        await doorway.empty(send, 405, ((b"allow", b"GET, POST, PUT, DELETE"),))
        return
    body: Mapping[str, object] = {}
    if method != "GET":
        refuse_other_sites(headers)
        body = await read_json(headers, receive)
    place = tuple(scope["path"].removeprefix(OPERATORS).split("/"))[1:]
    query = query_of(scope.get("query_string", b""))
    try:
        found = await room(Asked(method, place, query, body, scope.get(ACTOR, NOBODY)))
    except Misconfigured as error:
        raise MalformedMessage(str(error), INVALID_PARAMS) from None
    # What stands here today may be gone tomorrow, and is nobody else's to keep.
    fresh = ((b"cache-control", b"no-store"),)
    await doorway.answer(send, 200, bytes(jsonrpc.to_raw(found)), fresh)


def refuse_other_sites(headers: Mapping[bytes, bytes]) -> None:
    """What changes something is for programs, and for pages of the gateway's own."""
    origin = headers.get(b"origin")
    own = (b"http://" + headers[b"host"], b"https://" + headers[b"host"])
    site = headers.get(b"sec-fetch-site", b"none")
    if (origin is not None and origin not in own) or site not in (b"none", b"same-origin"):
        raise MalformedMessage("pages of other sites may change nothing here", ORIGIN_REFUSED)


async def read_json(headers: Mapping[bytes, bytes], receive: Receive) -> dict[str, object]:
    """A page of elsewhere cannot send this without asking first, and is then told no."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise MalformedMessage("send application/json, if only {}", WRONG_CONTENT_TYPE)
    body = await doorway.read_body(receive, headers, BODY_BYTES)
    if not body.strip():
        return {}
    if because := jsonrpc.excess(body, jsonrpc.LIMITS.depth):
        raise MalformedMessage(because, INVALID_PARAMS)
    jsonrpc.members(body)
    return cast("dict[str, object]", jsonrpc.value(body))


def query_of(written: bytes) -> dict[str, str]:
    try:
        fields = parse_qs(written.decode("ascii"), max_num_fields=QUERY_FIELDS)
    except ValueError:
        raise MalformedMessage("a query that cannot be read", INVALID_PARAMS) from None
    return {name: values[-1] for name, values in fields.items()}
