"""Browser sessions: opens, recognises, rotates and ends them.

The cookie holds the id of the session and a secret of 256 random bits. The store has only the
digest of the secret. Each node reads the sessions from its snapshot of the store.
"""

import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from comity.audit.events import AuditType
from comity.audit.log import AuditLog
from comity.errors import (
    CREDENTIAL_EXPIRED,
    NOTHING_HERE,
    UNAUTHENTICATED,
    MalformedMessage,
    Unavailable,
)
from comity.identity.login import rules
from comity.identity.login.model import (
    BrowserSession,
    BrowserSessionStore,
    SessionBook,
    SignInMethod,
)
from comity.identity.login.rules import SESSION_COOKIE, SessionCookie, SessionLifetimes
from comity.storage.changes import PAGE

log = logging.getLogger(__name__)

TOUCH_INTERVAL: Final = timedelta(seconds=30)
MAX_REMEMBERED_USES: Final = 100_000
UNKNOWN_SESSION: Final = "this browser is not signed in; open /login"
ENDED_SESSION: Final = "the session of this browser has ended; open /login to sign in again"

type Clock = Callable[[], datetime]
type Refresh = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, repr=False)
class SessionDraft:
    """A person who has just signed in, and how."""

    party: str
    method: SignInMethod
    key: str = ""
    issuer: str = ""
    subject: str = ""
    sid: str = ""
    hint: bytes = b""
    ends_at: datetime | None = None


class BrowserSessions:
    """The browser sessions of a gateway."""

    def __init__(
        self,
        store: BrowserSessionStore,
        book: SessionBook,
        refresh: Refresh,
        lifetimes: SessionLifetimes = SessionLifetimes(),  # noqa: B008  # it never changes
        *,
        clock: Clock = lambda: datetime.now(UTC),
        audit: AuditLog | None = None,
    ) -> None:
        self.lifetimes = lifetimes
        self._audit = audit
        self.clock = clock
        self._store = store
        self._book = book
        self._refresh = refresh
        # Told of each session that opens on this node.
        self.open_listeners: list[Callable[[BrowserSession], None]] = []
        self._used_at: dict[str, datetime] = {}
        self._unwritten: set[str] = set()

    async def open(self, draft: SessionDraft) -> bytes:
        """Open a session with a new id and a new secret, and return its Set-Cookie header."""
        now = self.clock()
        cookie = SessionCookie(secrets.token_hex(8), secrets.token_urlsafe(32))
        latest = now + self.lifetimes.absolute
        ends = latest if draft.ends_at is None else min(latest, draft.ends_at)
        session = BrowserSession(
            cookie.id,
            draft.party,
            draft.method,
            cookie.digest,
            b"",
            rotated_at=now,
            created_at=now,
            last_seen=now,
            expires_at=ends,
            key=draft.key,
            issuer=draft.issuer,
            subject=draft.subject,
            sid=draft.sid,
            hint=draft.hint,
        )
        await self._store.put(session)
        await self._refresh()
        self._record(AuditType.SESSION_STARTED, draft.party, session, method=draft.method)
        log.info("%s signed in: session %s", draft.party, session.id)
        for listener in self.open_listeners:
            listener(session)
        return rules.format_cookie(SESSION_COOKIE, cookie.value, ends - now)

    async def recognise(self, value: str) -> BrowserSession:
        """Return the session of a cookie, and note its use. Raises MalformedMessage."""
        cookie = rules.parse_session_cookie(value)
        if cookie is None:
            raise MalformedMessage(UNKNOWN_SESSION, UNAUTHENTICATED)
        session = self._find(cookie)
        if session is None:
            # Another node may have opened or rotated it a moment ago.
            await self._refresh()
            session = self._find(cookie)
        if session is None:
            raise MalformedMessage(UNKNOWN_SESSION, UNAUTHENTICATED)
        now = self.clock()
        if self._has_ended(session, now):
            raise MalformedMessage(ENDED_SESSION, CREDENTIAL_EXPIRED)
        if now >= self._last_seen(session) + min(TOUCH_INTERVAL, self.lifetimes.idle / 10):
            self._note_use(session.id, now)
        return session

    def current(self, id: str) -> BrowserSession | None:
        """Return a session that was recognised earlier, or None if it has ended since."""
        session = self._book.get(id)
        return None if session is None or self._has_ended(session, self.clock()) else session

    async def renew(self, session: BrowserSession, value: str) -> bytes | None:
        """Give a session another secret if it is time. Return its Set-Cookie header, or None."""
        cookie, now = rules.parse_session_cookie(value), self.clock()
        if cookie is None or not rules.is_rotation_due(session, cookie, now):
            return None
        new = SessionCookie(session.id, secrets.token_urlsafe(32))
        try:
            if not await self._store.rotate(session.id, cookie.digest, new.digest, now):
                return None
            await self._refresh()
        except Unavailable as error:
            log.info("The secret of session %s could not be changed yet: %s", session.id, error)
            return None
        return rules.format_cookie(SESSION_COOKIE, new.value, session.expires_at - now)

    async def end(self, by: str, id: str) -> BrowserSession:
        """End a session on all nodes. Raises MalformedMessage if there is none."""
        session = await self._store.get(id)
        if session is None or not await self._store.remove(id):
            raise MalformedMessage(f"there is no session {id!r:.80}", NOTHING_HERE)
        await self._refresh()
        self._record(AuditType.SESSION_ENDED, by, session)
        log.info("%s: ended session %s of %s", by, id, session.party)
        return session

    async def end_by_provider(self, issuer: str, subject: str, sid: str) -> int:
        """End the sessions that an OpenID provider names, and return their number."""
        ended = await self._store.remove_of_provider(issuer, subject, sid)
        await self._refresh()
        if self._audit is not None and ended:
            details = {"sessions": list(ended), "issuer": issuer}
            self._audit.record(AuditType.SESSION_ENDED, "system:gateway", details=details)
        return len(ended)

    async def list_of_party(self, party: str) -> list[BrowserSession]:
        """Return the sessions of a principal that have not ended."""
        now = self.clock()
        found = await self._store.list_of_party(party)
        return [each for each in found if not self._has_ended(each, now)]

    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[BrowserSession]:
        return await self._store.page(after, limit)

    async def use_once(self, token: str, until: datetime) -> bool:
        """Whether this is the first use of a token, on any node."""
        return await self._store.use_once(token, until, self.clock())

    async def flush(self) -> None:
        """Write when sessions were last used. The next attempt writes what this one cannot."""
        noted, self._unwritten = self._unwritten, set[str]()
        try:
            await self._store.touch({id: self._used_at[id] for id in noted})
        except Unavailable as error:
            log.info("The last use of sessions could not be stored yet: %s", error)
            self._unwritten |= noted

    def _find(self, cookie: SessionCookie) -> BrowserSession | None:
        session = self._book.get(cookie.id)
        if session is None:
            # An unknown id costs the same digest as a known one, so that timing reveals no ids.
            hashlib.sha256(cookie.secret.encode()).digest()
            return None
        return session if rules.is_session_secret(session, cookie, self.clock()) else None

    def _has_ended(self, session: BrowserSession, now: datetime) -> bool:
        return rules.has_session_ended(session, self._last_seen(session), self.lifetimes, now)

    def _last_seen(self, session: BrowserSession) -> datetime:
        return max(session.last_seen, self._used_at.get(session.id, session.last_seen))

    def _note_use(self, id: str, now: datetime) -> None:
        if len(self._used_at) >= MAX_REMEMBERED_USES:
            self._used_at = {each: self._used_at[each] for each in self._unwritten}
        self._used_at[id] = now
        self._unwritten.add(id)

    def _record(self, kind: AuditType, by: str, session: BrowserSession, method: str = "") -> None:
        if self._audit is not None:
            details = {"session": session.id, "principal": session.party}
            details |= {"method": method} if method else {}
            self._audit.record(kind, by, details=details)
