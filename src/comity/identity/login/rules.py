"""Pure decisions of the sign-in: cookies, addresses to return to, and whether a session holds."""

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from urllib.parse import unquote

from comity.errors import INVALID_REQUEST, MalformedMessage
from comity.identity.login.model import ROTATION_GRACE, ROTATION_INTERVAL, BrowserSession

SESSION_COOKIE: Final = "__Host-comity-session"
LOGIN_COOKIE: Final = "__Host-comity-login"
"""A browser accepts a cookie of this prefix from this very host only, and not from a sibling."""

LOGIN_PATH: Final = "/login"
START_PATH: Final = "/login/start"
CALLBACK_PATH: Final = "/login/callback"
LINK_PATH: Final = "/login/link"
BACKCHANNEL_PATH: Final = "/login/backchannel"
LOGOUT_PATH: Final = "/logout"
LOGIN_PATHS: Final = frozenset(
    {LOGIN_PATH, START_PATH, CALLBACK_PATH, LINK_PATH, BACKCHANNEL_PATH, LOGOUT_PATH}
)

CREDENTIAL_PREFIX: Final = "session:"
DEFAULT_NEXT: Final = "/console/"
MAX_NEXT_LENGTH: Final = 1_000
MAX_COOKIE_BYTES: Final = 8 * 1024
MAX_COOKIE_VALUE_BYTES: Final = 4_096

_SESSION: Final = re.compile(r"([0-9a-f]{16})\.([A-Za-z0-9_-]{43})")
_PLAIN_PATH: Final = re.compile(r"/[\x21-\x5b\x5d-\x7e]*")


class SessionCookie(NamedTuple):
    """The value of a session cookie, not yet verified."""

    id: str
    secret: str

    def __repr__(self) -> str:
        return f"SessionCookie({self.id!r})"

    @property
    def value(self) -> str:
        return f"{self.id}.{self.secret}"

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.secret.encode()).digest()


class SessionLifetimes(NamedTuple):
    """How long a session lasts at most, and how long without a request."""

    absolute: timedelta = timedelta(hours=12)
    idle: timedelta = timedelta(hours=1)


def cookie_of(headers: Mapping[bytes, bytes], name: str) -> str:
    """Return the value of a cookie, or an empty text.

    Raises MalformedMessage if the name appears twice: another program of the site could have added
    one, and two readers could each choose another.
    """
    header = headers.get(b"cookie", b"")
    if len(header) > MAX_COOKIE_BYTES:
        raise MalformedMessage("the cookies are too long; remove some", INVALID_REQUEST)
    pairs = (each.strip(b" \t").partition(b"=") for each in header.split(b";"))
    found = [value for key, _, value in pairs if key == name.encode()]
    if len(found) > 1:
        raise MalformedMessage("this cookie appears twice; remove one", INVALID_REQUEST)
    value = found[0] if found else b""
    return value.decode("latin-1") if len(value) <= MAX_COOKIE_VALUE_BYTES else ""


def parse_session_cookie(value: str) -> SessionCookie | None:
    form = _SESSION.fullmatch(value)
    return None if form is None else SessionCookie(form[1], form[2])


def format_cookie(name: str, value: str, lifetime: timedelta, same_site: str = "Strict") -> bytes:
    """Return a Set-Cookie header. A lifetime of zero removes the cookie."""
    seconds = max(0, int(lifetime.total_seconds()))
    return (
        f"{name}={value}; Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite={same_site}"
    ).encode("ascii")


def is_session_secret(session: BrowserSession, cookie: SessionCookie, now: datetime) -> bool:
    """Whether a cookie has the secret of a session, or the one before within its grace period."""
    is_current = hmac.compare_digest(cookie.digest, session.digest)
    is_previous = hmac.compare_digest(cookie.digest, session.previous)
    return is_current or (is_previous and now < session.rotated_at + ROTATION_GRACE)


def is_rotation_due(session: BrowserSession, cookie: SessionCookie, now: datetime) -> bool:
    """Whether a session should get another secret. Only the holder of the current one gets it."""
    is_old = now >= session.rotated_at + ROTATION_INTERVAL
    return is_old and hmac.compare_digest(cookie.digest, session.digest)


def has_session_ended(
    session: BrowserSession, last_seen: datetime, lifetimes: SessionLifetimes, now: datetime
) -> bool:
    """Whether a session is too old, or was not used for too long."""
    return now >= session.expires_at or now >= last_seen + lifetimes.idle


def own_path(text: str) -> str:
    """Return a path of this gateway to return to, or the default for anything else.

    Browsers read `//host`, `/\\host` and the same with a tab in it as another site. Percent signs
    are resolved before the check, so that no proxy can resolve them after it.
    """
    if len(text) > MAX_NEXT_LENGTH or not text.isascii():
        return DEFAULT_NEXT
    decoded, path = text, re.split(r"[?#]", text, maxsplit=1)[0]
    for _ in range(4):
        if not _PLAIN_PATH.fullmatch(path) or "//" in path or "/." in path:
            return DEFAULT_NEXT
        if not _PLAIN_PATH.fullmatch(decoded):
            return DEFAULT_NEXT
        path, resolved = re.split(r"[?#]", unquote(path), maxsplit=1)[0], path
        if path == resolved:
            return text
    return DEFAULT_NEXT


def is_own_origin(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a page of this very gateway sent the request. Without an Origin, it is unknown.

    A proxy may terminate TLS, so both schemes count. The browser sends the cookie to the secure
    scheme only, and sends it with no request of the other one.
    """
    host, origin = headers.get(b"host", b"").strip().lower(), headers.get(b"origin")
    site = headers.get(b"sec-fetch-site", b"same-origin")
    return (
        bool(host)
        and origin in (b"http://" + host, b"https://" + host)
        and (site == b"same-origin")
    )
