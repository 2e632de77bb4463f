"""The `auth` member of a message, as an alternative to the HTTP header."""

from dataclasses import dataclass
from typing import Final

import msgspec

from comity.errors import INVALID_REQUEST, UNAUTHENTICATED, MalformedMessage
from comity.http.asgi import UNSHOWN
from comity.identity.authentication import WHERE_TO_SHOW, Authenticator
from comity.mcp import jsonrpc
from comity.mcp.actors import Actor
from comity.mcp.jsonrpc import ExtendedFrame, Frame

MEMBER: Final = "auth"
REFUSED: Final = (
    "credentials do not belong into a message; send them in the Authorization header, or set "
    "accept_auth_member in [identity]"
)


@dataclass(frozen=True, slots=True)
class AuthMember:
    """Handles the `auth` member of messages.

    Without an `identity`, every such message is refused.
    """

    identity: Authenticator | None = None

    async def extract(self, frame: Frame, actor: Actor, path: str = "") -> tuple[Frame, Actor]:
        """Return the message without its `auth` member, and the actor that its credentials prove.

        Raises MalformedMessage if the credentials are missing, malformed or contradictory.
        """
        members = frame.members if isinstance(frame, ExtendedFrame) else {}
        held = [name for name in members if name.casefold() == MEMBER]
        if not held:
            if actor is UNSHOWN:
                raise MalformedMessage(WHERE_TO_SHOW, UNAUTHENTICATED)
            return frame, actor
        if self.identity is None or held != [MEMBER]:
            raise MalformedMessage(REFUSED, INVALID_REQUEST)
        shown = await self.identity.authenticate(_token(members[MEMBER]), path)
        if actor is not UNSHOWN and not actor.is_local and actor.party != shown.party:
            raise MalformedMessage(
                "the header and the message have different credentials", UNAUTHENTICATED
            )
        return _without(frame, members), shown


def _token(raw: msgspec.Raw) -> bytes:
    """Read `{"type": "bearer", "token": …}`. An error message never repeats the contents."""
    try:
        auth = jsonrpc.decode_members(raw)
        kind, token = jsonrpc.decode_text(auth.get("type")), jsonrpc.decode_text(auth.get("token"))
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
    return ExtendedFrame(*parts, rest) if rest else Frame(*parts)
