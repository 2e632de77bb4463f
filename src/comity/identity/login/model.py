"""Browser sessions of people, and the store that holds them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol

from comity.secrets.model import context_of
from comity.storage.changes import PAGE

ROTATION_INTERVAL: Final = timedelta(minutes=15)
"""How long a browser uses the same secret."""

ROTATION_GRACE: Final = timedelta(seconds=60)
"""How long the secret before remains valid, for requests that were sent at the same time."""

MAX_SESSIONS_PER_PRINCIPAL: Final = 20


class SignInMethod(StrEnum):
    """How a person signed in."""

    OPENID = "openid"
    KEY = "key"
    LINK = "link"


@dataclass(frozen=True, slots=True, repr=False)
class BrowserSession:
    """The record of a signed-in browser. It suffices to recognise its cookie, not to make it.

    `key` is the API key that the person signed in with; the session ends with it. `issuer`,
    `subject` and `sid` are the words by which an OpenID provider ends the session. `hint` is the
    encrypted ID token, which some providers demand at the sign-out.
    """

    id: str
    party: str
    method: SignInMethod
    digest: bytes
    previous: bytes
    rotated_at: datetime
    created_at: datetime
    last_seen: datetime
    expires_at: datetime
    key: str = ""
    issuer: str = ""
    subject: str = ""
    sid: str = ""
    hint: bytes = b""

    def __repr__(self) -> str:
        return f"BrowserSession({self.id!r} of {self.party!r})"


def hint_context(party: str, issuer: str, subject: str) -> str:
    """Return the context in which the hint of a session is sealed."""
    return context_of("session hint", party, issuer, subject)


class SessionBook(Protocol):
    """All browser sessions, in memory."""

    def get(self, session: str, /) -> BrowserSession | None: ...


class BrowserSessionStore(Protocol):
    """Store of browser sessions. A session that has ended has no record."""

    async def put(self, session: BrowserSession) -> None:
        """Write a new session. Remove expired ones, and the oldest of a principal with too many."""
        ...

    async def get(self, session: str) -> BrowserSession | None: ...

    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[BrowserSession]: ...

    async def list_of_party(self, party: str) -> Sequence[BrowserSession]: ...

    async def rotate(self, session: str, old: bytes, new: bytes, at: datetime) -> bool:
        """Replace the digest of a session, if it still is `old`. Return whether it was."""
        ...

    async def remove(self, session: str) -> bool:
        """End a session, and return whether it existed."""
        ...

    async def remove_of_provider(self, issuer: str, subject: str, sid: str) -> Sequence[str]:
        """End the sessions that a provider names, and return their ids.

        An empty word names nothing. With both, a session must have both.
        """
        ...

    async def touch(self, used: Mapping[str, datetime]) -> None:
        """Write when sessions were last used. Other nodes load it, because it delays the end."""
        ...

    async def use_once(self, token: str, until: datetime, now: datetime) -> bool:
        """Note that a token of one use was used. Return False if it was used before, on any node.

        The store forgets it after `until`, when the token has expired anyway.
        """
        ...
