"""Authentication: resolves the credentials of a request to its actor."""

import hashlib
import hmac
import ipaddress
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple, Protocol, cast

from comity.errors import RATE_LIMITED, UNAUTHENTICATED, MalformedMessage, Unavailable
from comity.identity import keys
from comity.identity.keys import KeyUsage
from comity.identity.login import rules
from comity.identity.login.model import BrowserSession, SignInMethod
from comity.identity.login.rules import SESSION_COOKIE
from comity.identity.login.sessions import ENDED_SESSION, BrowserSessions
from comity.identity.principals import MAX_GROUPS, ApiKey, Principal, checked_groups
from comity.mcp.actors import LOCAL, LOCAL_OPERATOR, Actor, PrincipalKind
from comity.toolkit.resilience import RateLimit, RateLimiter

log = logging.getLogger(__name__)

RATE: Final = RateLimit(count=30, period=60.0, burst=30)
MAX_ADDRESSES: Final = 50_000


class LoginThrottle:
    """Limits how often one address may present wrong credentials."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        rate: RateLimit = RATE,
        maximum: int = MAX_ADDRESSES,
    ) -> None:
        self._limiter = RateLimiter(now, maximum)
        self._rate = rate

    def __len__(self) -> int:
        return len(self._limiter)

    def count_failure(self, address: str) -> None:
        """Count wrong credentials. Raises Unavailable if the address has presented too many."""
        now = self._limiter.clock()
        counter = self._limiter.rate_counter(_place(address), self._rate)
        if wait := counter.wait(now):
            raise Unavailable(
                "too many wrong credentials came from this address",
                RATE_LIMITED,
                timedelta(milliseconds=math.ceil(wait * 1000)),
            )
        counter.take(now)
        if counter.wait(now):
            log.info("Too many wrong credentials from %s; further attempts are refused", address)


@lru_cache(4096)
def _place(address: str) -> str:
    """Return the unit in which an address is counted.

    For IPv6 that is the /64, because one holder controls the whole prefix.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    mapped = found.ipv4_mapped
    return str(mapped or ipaddress.ip_network((found, 64), strict=False))


class KeyBook(Protocol):
    """All keys in force, in memory."""

    def get(self, key: str, /) -> ApiKey | None: ...


class PartyBook(Protocol):
    """All stored principals, in memory."""

    def get(self, party: str, /) -> Principal | None: ...


class TokenClaims(NamedTuple):
    """The actor that a token proves, the expiry of the token, and the paths that it is valid for.

    A token is valid for each of `paths` and for everything below them.
    """

    actor: Actor
    expires: datetime
    paths: tuple[str, ...] = ("",)


class TokenVerifier(Protocol):
    """Verifies access tokens."""

    async def prove(self, token: str) -> TokenClaims:
        """Verify a token, and return its claims.

        Raises MalformedMessage with the fault if the token is invalid or lacks a requirement. May
        wait for a bounded time for the keys of the issuer.
        """
        ...


@dataclass(frozen=True, slots=True, repr=False)
class TokenIssuer:
    """An authorization server, as the operator configured it.

    With an `audience`, Comity accepts its access tokens. With a `client_id`, people sign in there.
    """

    issuer: str
    audience: str = ""
    jwks_url: str = ""
    required_scopes: tuple[str, ...] = ()
    principal_claim: str = "sub"
    principal_prefix: str = ""
    # Whether each email of this issuer is verified, though its tokens do not say so.
    email_is_verified: bool = False
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA")
    kind: PrincipalKind = PrincipalKind.PERSON
    name: str = ""
    client_id: str = ""
    client_secret_file: str = ""
    client_secret_env: str = ""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    groups_claim: str = ""

    def __repr__(self) -> str:
        return f"TokenIssuer({self.issuer!r})"


def claimed_groups(issuer: TokenIssuer, claims: Mapping[str, object]) -> tuple[str, ...] | None:
    """Return the groups that verified claims name, or None without the claim of groups.

    Raises MalformedMessage for a malformed claim, because a group can also be denied something.
    The issuer of a member of very many groups leaves them out and refers to another address
    instead. That is refused for the same reason.
    """
    named = issuer.groups_claim
    indirect = claims.get("_claim_names")
    if isinstance(indirect, dict) and named in indirect:
        raise _bad_groups(named, "names too many groups; let the issuer send fewer")
    value = claims[named] if named in claims else _nested_claim(claims, named)
    if value is None:
        return None
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, list):
        raise _bad_groups(named, "must be a list of names")
    names = cast("list[object]", several)
    if len(names) > MAX_GROUPS:
        raise _bad_groups(named, f"names more than {MAX_GROUPS} groups")
    if not all(isinstance(name, str) for name in names):
        raise _bad_groups(named, "must be a list of names")
    try:
        return checked_groups(cast("list[str]", names))
    except MalformedMessage as error:
        raise _bad_groups(named, str(error)) from None


def _nested_claim(found: object, named: str) -> object:
    """Return the claim that a name with dots means, as `realm_access.roles`, or None."""
    for member in named.split("."):
        if not isinstance(found, dict):
            raise _bad_groups(named, "must be a list of names")
        found = cast("dict[str, object]", found).get(member)
        if found is None:
            return None
    return found


def _bad_groups(claim: str, reason: str) -> MalformedMessage:
    return MalformedMessage(f"the claim {claim} of this token {reason}", UNAUTHENTICATED)


WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


def paths_for(names: Iterable[str], audience: str) -> tuple[str, ...]:
    """Return the paths for which a token with these audiences is valid.

    The result is empty for a token with other audiences. `audience` identifies the whole gateway.
    A token may name a part of it.
    """
    whole = audience.rstrip("/")
    found: list[str] = []
    for each in names:
        bare = each.rstrip("/")
        if bare == whole:
            return ("",)
        if bare.startswith(f"{whole}/") and "://" in whole:
            found.append(bare[len(whole) :])
    return tuple(found)


def is_within(path: str, places: Iterable[str]) -> bool:
    """Whether a path equals one of `places` or lies below one."""
    return any(not place or path == place or path.startswith(f"{place}/") for place in places)


type Clock = Callable[[], datetime]

REMEMBERED: Final = 10_000
PROOF_LIFETIME: Final = timedelta(seconds=60)
MAX_LENGTH: Final = 16 * 1024
_BEARER: Final = b"bearer "
_KEY: Final = "key"
_SESSION: Final = rules.CREDENTIAL_PREFIX.removesuffix(":")
SESSION_PATHS: Final = ("/api/", "/approvals/", "/accounts/")
"""The only paths at which Comity accepts a session cookie: a page may not call tools with it."""

_PASSED_ON: Final = frozenset(
    {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"}
)
"""Headers that proxies add. With one of them, the peer address is not the address of the client."""

WHERE_TO_SHOW: Final = (
    "authentication required: send `Authorization: Bearer KEY` with a key from `comity keys "
    "create`, "
    "or an access token"
)


@dataclass(frozen=True, slots=True, repr=False)
class IdentityDirectory:
    """The known principals and keys, and the pepper that verifies keys."""

    keys: KeyBook
    parties: PartyBook
    pepper: bytes


class RequestCredentials(NamedTuple):
    """The parts of a request that identify its sender."""

    headers: Mapping[bytes, bytes]
    peer: str = ""
    path: str = ""
    is_named_locally: bool = False


class Authenticator:
    """Resolves credentials to actors."""

    def __init__(
        self,
        directory: IdentityDirectory,
        tokens: TokenVerifier | None = None,
        *,
        sessions: BrowserSessions | None = None,
        is_local: bool = False,
        operator_token: str = "",
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self.is_local = is_local
        self.sessions = sessions
        self._operator_token = operator_token.encode()
        self.key_usage = KeyUsage()
        self.login_throttle = LoginThrottle()
        self._register = directory
        self._tokens = tokens
        self._clock = clock
        self._holders: dict[bytes, tuple[ApiKey, Principal, Actor]] = {}
        self._proofs: dict[bytes, tuple[TokenClaims, datetime]] = {}

    @property
    def pepper(self) -> bytes:
        """The secret that verifies keys, for code that creates new keys."""
        return self._register.pepper

    def recognise(self, shown: bytes, credentials: RequestCredentials) -> Actor | None:
        """Return the actor if that needs no wait, or None if the credential needs verification.

        Raises MalformedMessage if the credential is a key that is not valid.
        """
        credential = shown[7:].strip(b" ")
        if shown[:7].lower() != _BEARER:
            return None
        if not keys.looks_like_key(credential):
            return self.operator(credentials) if self._is_operator_token(shown) else None
        return self._holder(credential)

    async def identify(self, credentials: RequestCredentials) -> Actor:
        """Return the actor that sent a request. Raises MalformedMessage if the credentials are
        invalid.

        Comity verifies credentials first, whatever else came from the address: a key costs one
        look-up and one HMAC. Only wrong credentials count against the address. Too many of them
        raise Unavailable.
        """
        shown = credentials.headers.get(b"authorization")
        if shown is None:
            signed_in = await self.identify_browser(credentials)
            return self.local(credentials) if signed_in is None else signed_in
        if shown[:7].lower() != _BEARER:
            raise MalformedMessage(WHERE_TO_SHOW, UNAUTHENTICATED)
        if self._is_operator_token(shown):
            return self.operator(credentials)
        try:
            return await self.authenticate(shown[7:].strip(b" "), credentials.path)
        except MalformedMessage as error:
            # An expired credential was valid once, so it is no guess, and many can expire at the
            # same time.
            if error.fault is UNAUTHENTICATED:
                self.login_throttle.count_failure(credentials.peer)
            raise

    async def identify_browser(self, credentials: RequestCredentials) -> Actor | None:
        """Return the person whose browser sent a request, or None without a session cookie.

        Raises MalformedMessage if the session has ended.
        """
        if self.sessions is None or not credentials.path.startswith(SESSION_PATHS):
            return None
        cookie = rules.cookie_of(credentials.headers, SESSION_COOKIE)
        if not cookie:
            return None
        try:
            session = await self.sessions.recognise(cookie)
        except MalformedMessage as error:
            if error.fault is UNAUTHENTICATED:
                self.login_throttle.count_failure(credentials.peer)
            raise
        if session.method is SignInMethod.LINK:
            self.local(credentials)
        actor = self._actor_of_session(session)
        if actor is None:
            raise MalformedMessage(ENDED_SESSION, UNAUTHENTICATED)
        return actor

    async def renew_session(self, actor: Actor, headers: Mapping[bytes, bytes]) -> bytes | None:
        """Return the Set-Cookie header of a session that gets another secret now, or None."""
        kind, _, id = actor.credential.partition(":")
        if kind != _SESSION or self.sessions is None:
            return None
        session = self.sessions.current(id)
        if session is None:
            return None
        return await self.sessions.renew(session, rules.cookie_of(headers, SESSION_COOKIE))

    def _actor_of_session(self, session: BrowserSession) -> Actor | None:
        """Return the person of a session, or None if its key or its principal has ended."""
        credential, ends = f"{_SESSION}:{session.id}", session.expires_at
        if session.method is SignInMethod.LINK:
            local = replace(LOCAL_OPERATOR, credential=credential, expires_at=ends)
            return local if self.is_local else None
        actor = self.find_actor(session.party, session.key)
        if actor is None or actor.is_local:
            return None
        return replace(actor, credential=credential, expires_at=ends)

    def _find_browser(self, party: str, id: str) -> Actor | None:
        """Return the person of a session that was recognised before, or None if it has ended."""
        session = None if self.sessions is None else self.sessions.current(id)
        if session is None or session.party != party:
            return None
        return self._actor_of_session(session)

    async def authenticate(self, credential: bytes, path: str = "") -> Actor:
        """Return the holder of a key or a token. Raises MalformedMessage."""
        if keys.looks_like_key(credential):
            return self._holder(credential)
        if self._tokens is None or not 0 < len(credential) <= MAX_LENGTH:
            raise MalformedMessage(keys.UNKNOWN, UNAUTHENTICATED)
        return await self._verify_token(self._tokens, credential, path)

    def has_principal(self, party: str) -> bool:
        """Whether there is a record of this principal, enabled or not."""
        return self._register.parties.get(party) is not None

    def find_actor(self, party: str, key: str = "") -> Actor | None:
        """Return a principal that is known and enabled as an actor, or None.

        With `key`, the actor is the holder of that key. For principals that were authenticated
        before, or that an operator named.
        """
        if party == LOCAL_OPERATOR.party and not key:
            return LOCAL_OPERATOR if self.is_local else None
        known = self._register.parties.get(party)
        if known is None or known.disabled:
            return None
        if not key:
            return Actor(party, known.kind, "link", groups=known.groups)
        held = self._register.keys.get(key)
        if held is None or held.party != party or not keys.is_key_active(held, self._clock()):
            return None
        return _actor(held, known)

    def stands(self, actor: Actor) -> bool:
        """Whether the credentials that identified an actor earlier are still valid."""
        if actor.is_local:
            return self.is_local
        kind, _, id = actor.credential.partition(":")
        if kind == _SESSION:
            return self._find_browser(actor.party, id) is not None
        party = self._register.parties.get(actor.party)
        if party is not None and party.disabled:
            return False
        if kind != _KEY:
            return actor.expires_at is None or actor.expires_at > self._clock()
        held = self._register.keys.get(id)
        return (
            party is not None
            and held is not None
            and held.party == actor.party
            and keys.is_key_active(held, self._clock())
        )

    def is_lasting(self, actor: Actor) -> bool:
        """Whether only a change can end the credentials of an actor, and not a point in time."""
        if actor.is_local:
            return self.is_local
        kind, _, id = actor.credential.partition(":")
        held = self._register.keys.get(id) if kind == _KEY else None
        return held is not None and held.expires_at is None and held.revoked_at is None

    def operator(self, credentials: RequestCredentials) -> Actor:
        """Return the local operator.

        Raises MalformedMessage unless the request comes from this machine.
        """
        self.local(credentials)
        return LOCAL_OPERATOR

    def _is_operator_token(self, shown: bytes) -> bool:
        """Whether this is the token that the gateway created for its operator at startup."""
        token, credential = self._operator_token, shown[7:].strip(b" ")
        return self.is_local and bool(token) and hmac.compare_digest(credential, token)

    def refresh_actor(self, actor: Actor) -> Actor | None:
        """Return the actor with its current attributes, or None if its credentials are no longer
        valid.
        """
        if not self.stands(actor):
            return None
        kind, _, id = actor.credential.partition(":")
        if kind == _SESSION:
            return self._find_browser(actor.party, id)
        if kind == _KEY:
            return self.find_actor(actor.party, id)
        return _with_groups(actor, self._register.parties.get(actor.party))

    def local(self, credentials: RequestCredentials) -> Actor:
        """Return the local user for a request without credentials.

        Raises MalformedMessage if the mode requires credentials, or if the request is not local.
        """
        if not self.is_local:
            raise MalformedMessage(WHERE_TO_SHOW, UNAUTHENTICATED)
        if (
            credentials.is_named_locally
            and is_loopback(credentials.peer)
            and _PASSED_ON.isdisjoint(credentials.headers)
        ):
            return LOCAL
        raise MalformedMessage(
            'this gateway accepts local clients only; set mode = "required" in [identity] and '
            "create keys for remote clients and clients behind a proxy",
            UNAUTHENTICATED,
        )

    def _holder(self, credential: bytes) -> Actor:
        """Return the holder of a key. The digest of a verified key is cached."""
        digest = hashlib.sha256(credential).digest()
        now = self._clock()
        key, party, actor = self._holders.get(digest) or self._recognise(credential, digest, now)
        if (
            self._register.keys.get(key.id) is not key
            or self._register.parties.get(key.party) is not party
            or not keys.is_key_active(key, now)
        ):
            # The key or its principal has changed since it was cached, so the key is verified
            # again.
            key, party, actor = self._recognise(credential, digest, now)
        self.key_usage.record_use(key.id, now)
        return actor

    def _recognise(
        self, credential: bytes, digest: bytes, now: datetime
    ) -> tuple[ApiKey, Principal, Actor]:
        self._holders.pop(digest, None)
        shown = keys.parse_key(credential)
        if shown is None:
            raise MalformedMessage(
                "invalid key: it looks truncated",
                UNAUTHENTICATED,
            )
        key = keys.verify_key(self._register.pepper, shown, self._register.keys.get(shown.id), now)
        party = self._register.parties.get(key.party)
        if party is None or party.disabled:
            raise MalformedMessage(DISABLED, UNAUTHENTICATED)
        if len(self._holders) >= REMEMBERED:
            del self._holders[next(iter(self._holders))]
        held = self._holders[digest] = (key, party, _actor(key, party))
        return held

    async def _verify_token(self, tokens: TokenVerifier, credential: bytes, path: str) -> Actor:
        digest = hashlib.sha256(credential).digest()
        now = self._clock()
        proof, until = self._proofs.get(digest, (None, now))
        if proof is None or until <= now:
            self._proofs.pop(digest, None)
            proof = await tokens.prove(credential.decode("latin-1"))
            if len(self._proofs) >= REMEMBERED:
                self._proofs.pop(next(iter(self._proofs)))
            self._proofs[digest] = (proof, min(proof.expires, now + PROOF_LIFETIME))
        party = self._register.parties.get(proof.actor.party)
        if party is not None and party.disabled:
            raise MalformedMessage(DISABLED, UNAUTHENTICATED)
        if path and not is_within(path, proof.paths):
            raise MalformedMessage(
                "this token is for another address of this gateway", UNAUTHENTICATED
            )
        return _with_groups(proof.actor, party)


def _with_groups(actor: Actor, party: Principal | None) -> Actor:
    """Return an actor with the groups of its record, unless its token names them."""
    groups = () if party is None else party.groups
    if actor.has_claimed_groups or actor.groups == groups:
        return actor
    return replace(actor, groups=groups)


def _actor(key: ApiKey, party: Principal) -> Actor:
    return Actor(
        key.party,
        party.kind,
        f"{_KEY}:{key.id}",
        keys.bounds_of(key.permissions),
        requests_per_minute=key.requests_per_minute,
        requests_per_hour=key.requests_per_hour,
        expires_at=key.expires_at,
        groups=party.groups,
    )


DISABLED: Final = "the principal of these credentials is disabled"


@lru_cache(1024)
def is_loopback(peer: str) -> bool:
    """Whether a connection comes from this machine."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
