"""Webhooks that come in: signed, named by their event, and from then on pushes as others. (0046)

Rule 1: of a request that is not signed nothing is told, not even in time whether its hook exists.
Rule 2: what is not small and plain JSON is refused, after the signature, for only then it matters.
Rule 3: it is answered when it is kept: whoever gets another answer sends it again.
"""

import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, cast

import msgspec

from comity.kernel.live.pushes import Pushes
from comity.rules.pushes import LONGEST_TEXT, at, filled, settled
from comity.wire import jsonrpc
from comity.wire.contents import said
from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.inbound_hooks import (
    OF_BODY,
    OF_HEADER,
    Heading,
    HookKind,
    Signing,
    digest_of,
    header_of,
    is_signed,
    type_of,
    usual_ids,
)
from comity.wire.pushes import LONGEST_ID, OF_HOOKS, Push, Route

log = logging.getLogger(__name__)

DEPTH: Final = 64


@dataclass(frozen=True, slots=True, repr=False)
class Hook:
    """One webhook that comes in, with its secrets."""

    name: str
    signing: Signing
    route: Route
    id: str = ""
    content: str = ""

    @property
    def server(self) -> str:
        return f"{OF_HOOKS}{self.name}"


class Taken(StrEnum):
    """What became of a request."""

    KEPT = "kept"
    KNOWN = "known"
    UNSIGNED = "unsigned"
    TOO_MANY = "too many"


class InboundHooks:
    """Every webhook that an operator lets in."""

    def __init__(self, hooks: Iterable[Hook], pushes: Pushes) -> None:
        self._hooks = {each.name: each for each in hooks}
        self._pushes = pushes
        # Against this it is held what nobody could have signed.
        self._nobodys = Signing(HookKind.GITHUB, (secrets.token_bytes(32),))

    @property
    def most_bytes(self) -> int:
        return self._pushes.options.most_bytes

    async def take(self, name: str, headers: Heading, body: bytes) -> Taken:
        """Keep it, if it is signed. Raises MalformedMessage, Unavailable."""
        hook = self._hooks.get(name)
        signing = self._nobodys if hook is None else hook.signing
        is_right = is_signed(signing, headers, body, self._pushes.doing.clock())
        if hook is None:
            # Which webhooks there are is for those to know who can sign one.
            return Taken.UNSIGNED
        if not is_right:
            self._pushes.refused(hook.server, "", "unsigned")
            return Taken.UNSIGNED
        if self._pushes.hold_back(hook.server, ""):
            return Taken.TOO_MANY
        push, fields = self._push(hook, headers, body)
        found = await self._pushes.admit(push, settled(hook.route, push, fields))
        if found is None:
            return Taken.TOO_MANY
        if not found.is_new:
            return Taken.KNOWN
        # It is kept; whoever sent it does not wait for what follows.
        self._pushes.begin(found.kept)
        return Taken.KEPT

    def _push(self, hook: Hook, headers: Heading, body: bytes) -> tuple[Push, object]:
        fields = _read(body)
        kind = hook.signing.kind
        origin: dict[str, object] = {"hook": hook.name}
        if type := type_of(kind, headers):
            origin["type"] = type
        now = self._pushes.doing.clock()
        push = Push(hook.server, _id(hook, headers, body, fields), now, (), "", origin)
        template = hook.content
        text = filled(template, push, fields) if template else _whole(fields)
        return replace(push, content=said(text)), fields


def _read(body: bytes) -> object:
    if because := jsonrpc.excess(body, DEPTH):
        raise MalformedMessage(because, INVALID_PARAMS)
    found = jsonrpc.value(body)
    if not isinstance(found, dict | list):
        raise MalformedMessage("the body is no JSON object or array", INVALID_PARAMS)
    return cast("object", found)


def _id(hook: Hook, headers: Heading, body: bytes, fields: object) -> str:
    """Which event it is, by the first place that says so. Raises MalformedMessage."""
    for place in (hook.id,) if hook.id else usual_ids(hook.signing.kind):
        id = _id_at(place, headers, body, fields)
        if id and (len(id) > LONGEST_ID or not id.isprintable()):
            raise MalformedMessage(
                f"an event's id has 1 to {LONGEST_ID} characters", INVALID_PARAMS
            )
        if id:
            return id
    raise MalformedMessage("it does not say which event it is", INVALID_PARAMS)


def _id_at(place: str, headers: Heading, body: bytes, fields: object) -> str:
    if place == OF_BODY:
        return digest_of(body)
    if place.startswith(OF_HEADER):
        return header_of(headers, place.removeprefix(OF_HEADER))
    found = at(fields, place)
    is_word = isinstance(found, str | int) and not isinstance(found, bool)
    return str(found) if is_word else ""


def _whole(fields: object) -> str:
    written = msgspec.json.encode(fields).decode()
    is_long = len(written) > LONGEST_TEXT
    return f"{written[:LONGEST_TEXT]}\N{HORIZONTAL ELLIPSIS}" if is_long else written
