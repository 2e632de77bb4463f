"""Credentials inside a message, the registry's `auth` member: taken out before anybody sees them.

Rule 1: it is accepted only where an operator said so; elsewhere a message that has it is refused,
        and nothing of it is repeated. (D-83, S17)
Rule 2: what goes on is the message without it. It is in no log, no trace, and no answer.
Rule 3: it makes nobody out of somebody else: beside a header it must name the same party.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from comity.kernel.identity import WHERE_TO_SHOW, Identity
from comity.surfaces.reception import UNSHOWN
from comity.wire import jsonrpc
from comity.wire.errors import INVALID_REQUEST, UNAUTHENTICATED, MalformedMessage
from comity.wire.jsonrpc import Frame, FrameWithMembers
from comity.wire.parties import Actor

MEMBER: Final = "auth"
REFUSED: Final = (
    "credentials do not belong into a message; send them in the Authorization header, or set "
    "accept_auth_member in [identity]"
)


@dataclass(frozen=True, slots=True)
class AuthMember:
    """What a door does with the `auth` of a message; without an identity it refuses it."""

    identity: Identity | None = None

    async def take(self, frame: Frame, actor: Actor, path: str = "") -> tuple[Frame, Actor]:
        """The message as it may go on, and who sent it, by all that it showed."""
        members = frame.members if isinstance(frame, FrameWithMembers) else {}
        held = [name for name in members if name.casefold() == MEMBER]
        if not held:
            if actor is UNSHOWN:
                raise MalformedMessage(WHERE_TO_SHOW, UNAUTHENTICATED)
            return frame, actor
        if self.identity is None or held != [MEMBER]:
            raise MalformedMessage(REFUSED, INVALID_REQUEST)
        shown = await self.identity.known_by(_token(members[MEMBER]), path)
        if actor is not UNSHOWN and not actor.is_local and actor.party != shown.party:
            raise MalformedMessage("the header and the message name two parties", UNAUTHENTICATED)
        return _without(frame, members), shown


def _token(raw: msgspec.Raw) -> bytes:
    """`{"type": "bearer", "token": …}`, exactly; what else it may be is not repeated."""
    try:
        auth = jsonrpc.members(raw)
        kind, token = jsonrpc.text(auth.get("type")), jsonrpc.text(auth.get("token"))
    except MalformedMessage:
        kind = token = None
    if kind is None or kind.lower() != "bearer" or not token or not token.isascii():
        raise MalformedMessage(
            'auth is written as {"type": "bearer", "token": "…"}', UNAUTHENTICATED
        )
    return token.encode("ascii")


def _without(frame: Frame, members: dict[str, msgspec.Raw]) -> Frame:
    rest = {name: raw for name, raw in members.items() if name != MEMBER}
    parts = ("2.0", frame.id, frame.method, frame.params, frame.result, frame.error)
    return FrameWithMembers(*parts, rest) if rest else Frame(*parts)
