"""Sign-in and sign-out of people: with a provider, an API key, or a one-time link."""

import base64
import hashlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol, cast

from comity.audit.events import AuditType
from comity.audit.log import AuditLog
from comity.errors import UNAUTHENTICATED, UPSTREAM_DOWN, MalformedMessage, Unavailable
from comity.identity.login import rules
from comity.identity.login.messages import claims_in
from comity.identity.login.model import BrowserSession, SignInMethod, hint_context
from comity.identity.login.rules import LOGIN_COOKIE
from comity.identity.login.sessions import BrowserSessions, SessionDraft
from comity.identity.principals import (
    Principal,
    PrincipalStore,
)
from comity.mcp.actors import LOCAL_OPERATOR, Actor, PrincipalKind
from comity.secrets.model import Sealer
from comity.toolkit.sealed_tokens import seal_token, unseal_token

log = logging.getLogger(__name__)

TRANSACTION_LIFETIME: Final = timedelta(minutes=10)
LINK_LIFETIME: Final = timedelta(minutes=10)
MAX_HINT_BYTES: Final = 8 * 1024

_TRANSACTION: Final = "sign-in"
_LINK: Final = "sign-in link"
# A link fits on a line of a terminal: 36 characters hold its signature, a random number that makes
# it the only one of its second, and its end.
_LINK_SIGNATURE_BYTES: Final = 16
_LINK_NONCE_BYTES: Final = 7
_LINK_TIME_BYTES: Final = 4
_MAX_LINK_LENGTH: Final = 2_048
_FOREIGN: Final = (
    "this sign-in did not begin in this browser, or more than ten minutes ago; start again"
)
_USED: Final = "this sign-in was completed before; start again"
TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105  # a name
ID_TOKEN: Final = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105  # a name
ID_TOKEN_MARGIN: Final = timedelta(seconds=10)
MAX_REFUSED_TOKENS: Final = 10_000

# RFC 8693 demands `invalid_request` for a subject token that is refused. Many issuers answer
# `invalid_grant`, as for other grants.
_REFUSED_TOKEN: Final = frozenset({"invalid_request", "invalid_grant"})
_KNOWN_ERRORS: Final = frozenset(
    {
        *_REFUSED_TOKEN,
        *("invalid_client", "unauthorized_client", "unsupported_grant_type", "invalid_scope"),
        *("invalid_target", "access_denied", "server_error", "temporarily_unavailable"),
    }
)
DISABLED: Final = "your account is disabled here; ask an administrator of this gateway"

type Refresh = Callable[[], Awaitable[None]]


class ProviderSecrets(NamedTuple):
    """The random words of one sign-in. All follow from one seed."""

    state: str
    nonce: str
    verifier: str

    def __repr__(self) -> str:
        return "ProviderSecrets()"


class SignedInPerson(NamedTuple):
    """A person, as a provider proved it. Without a claim of groups, `groups` is None."""

    party: str
    subject: str
    sid: str
    label: str
    groups: tuple[str, ...] | None
    id_token: str

    def __repr__(self) -> str:
        return f"SignedInPerson({self.party!r})"


class LogoutOrder(NamedTuple):
    """The sessions that a provider wants to end, and the id of the order."""

    subject: str
    sid: str
    id: str


class SignInProvider(Protocol):
    """A place where people sign in. Its methods raise MalformedMessage and Unavailable."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...

    def is_own_audience(self, audiences: Sequence[str]) -> bool:
        """Return whether this gateway itself accepts tokens for one of these audiences."""
        ...

    async def request_token(self, fields: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """Send a request to the token endpoint as the client of this gateway."""
        ...

    async def authorization_url(self, chosen: ProviderSecrets, redirect_uri: str) -> str:
        """Return where the browser goes for a sign-in."""
        ...

    async def check_issuer(self, named: str | None) -> None:
        """Refuse the answer of another provider. `named` is the `iss` of the answer."""
        ...

    async def redeem(
        self, code: str, chosen: ProviderSecrets, redirect_uri: str
    ) -> SignedInPerson: ...

    async def read_logout_token(self, token: str) -> LogoutOrder: ...

    async def end_session_url(self, id_token: str, back: str) -> str:
        """Return where the browser signs out at the provider, or an empty text."""
        ...


class CompletedSignIn(NamedTuple):
    """A completed sign-in: the Set-Cookie header of its session, and where the browser goes."""

    cookie: bytes
    next: str


class LoginTransaction(NamedTuple):
    """A sign-in that has begun: its provider, its seed, and where the browser goes afterwards."""

    issuer: str
    seed: str
    next: str
    expires: datetime


@dataclass(frozen=True, slots=True, repr=False)
class LoginKeys:
    """The secrets of the sign-in. All nodes with the same pepper have the same ones.

    A one-time link is also tied to the operator token, so that it ends with the process.
    """

    pepper: bytes
    operator_token: str = ""

    @property
    def transactions(self) -> bytes:
        return hmac.digest(self.pepper, _TRANSACTION.encode(), hashlib.sha256)

    @property
    def links(self) -> bytes:
        purpose = f"{_LINK} {self.operator_token}"
        return hmac.digest(self.pepper, purpose.encode(), hashlib.sha256)


class LoginService:
    """Signs people in and out."""

    def __init__(
        self,
        sessions: BrowserSessions,
        parties: PrincipalStore,
        refresh: Refresh,
        keys: LoginKeys,
        providers: Iterable[SignInProvider] = (),
        *,
        audit: AuditLog | None = None,
        sealer: Sealer | None = None,
    ) -> None:
        self.sessions = sessions
        self.providers = {each.id: each for each in providers}
        self._parties = parties
        self._refresh = refresh
        self._keys = keys
        self._audit = audit
        self._sealer = sealer

    # With a provider.

    async def start(self, issuer: str, return_to: str, redirect_uri: str) -> tuple[str, bytes]:
        """Begin a sign-in. Return the address of the provider, and a Set-Cookie header."""
        provider = self._provider(issuer)
        expires = self.sessions.clock() + TRANSACTION_LIFETIME
        begun = LoginTransaction(
            issuer, secrets.token_urlsafe(32), rules.own_path(return_to), expires
        )
        url = await provider.authorization_url(self._derive(begun.seed), redirect_uri)
        words = (begun.issuer, begun.seed, begun.next, str(int(expires.timestamp())))
        sealed = seal_token(self._keys.transactions, _TRANSACTION, *words)
        return url, rules.format_cookie(LOGIN_COOKIE, sealed, TRANSACTION_LIFETIME, "Lax")

    async def finish(
        self, cookie: str, answer: Mapping[str, str], redirect_uri: str
    ) -> CompletedSignIn:
        """Complete a sign-in with the answer that the browser brought from the provider."""
        begun = self._read_transaction(cookie)
        chosen = self._derive(begun.seed)
        if not hmac.compare_digest(answer.get("state", "").encode(), chosen.state.encode()):
            raise MalformedMessage(_FOREIGN, UNAUTHENTICATED)
        provider = self._provider(begun.issuer)
        await provider.check_issuer(answer.get("iss"))
        if not await self.sessions.use_once(begun.seed, begun.expires):
            raise MalformedMessage(_USED, UNAUTHENTICATED)
        if "error" in answer:
            raise MalformedMessage(_describe_error(answer["error"]), UNAUTHENTICATED)
        person = await provider.redeem(answer.get("code", ""), chosen, redirect_uri)
        await self._admit(person, begun.issuer)
        draft = SessionDraft(
            person.party,
            SignInMethod.OPENID,
            issuer=begun.issuer,
            subject=person.subject,
            sid=person.sid,
            hint=await self._seal_hint(person, begun.issuer),
        )
        return CompletedSignIn(await self.sessions.open(draft), begun.next)

    async def end_by_provider(self, token: str) -> int:
        """End the sessions that a provider names in a logout token. Return their number.

        The token is read without its signature only to find the provider that verifies it.
        """
        provider = self._provider(str(claims_in(token).get("iss", "")))
        order = await provider.read_logout_token(token)
        until = self.sessions.clock() + timedelta(days=1)
        if not await self.sessions.use_once(f"{provider.id} {order.id}", until):
            raise MalformedMessage("this logout token was used before", UNAUTHENTICATED)
        return await self.sessions.end_by_provider(provider.id, order.subject, order.sid)

    # With an API key, and with a one-time link.

    async def sign_in_with_key(self, actor: Actor, return_to: str) -> CompletedSignIn:
        """Open a session for the holder of an API key. It ends with the key."""
        key = actor.credential.removeprefix("key:")
        draft = SessionDraft(actor.party, SignInMethod.KEY, key=key, ends_at=actor.expires_at)
        return CompletedSignIn(await self.sessions.open(draft), rules.own_path(return_to))

    def make_link(self, return_to: str = "") -> tuple[str, datetime]:
        """Return the token of a one-time link for the local operator, and its expiry."""
        expires = self.sessions.clock() + LINK_LIFETIME
        target = rules.own_path(return_to)
        content = secrets.token_bytes(_LINK_NONCE_BYTES)
        content += int(expires.timestamp()).to_bytes(_LINK_TIME_BYTES)
        content += b"" if target == rules.own_path("") else target.encode()
        return _encode_link(_sign_link(self._keys.links, content) + content), expires

    async def open_link(self, token: str) -> CompletedSignIn:
        """Sign the local operator in. The caller has checked that the request is local."""
        content = _verified_link(self._keys.links, token) if self._keys.operator_token else b""
        if not content:
            raise MalformedMessage(_LINK_REFUSED, UNAUTHENTICATED)
        head = _LINK_NONCE_BYTES + _LINK_TIME_BYTES
        seconds = int.from_bytes(content[_LINK_NONCE_BYTES:head])
        expires = datetime.fromtimestamp(seconds, UTC)
        if expires <= self.sessions.clock() or not await self.sessions.use_once(token, expires):
            raise MalformedMessage(_LINK_REFUSED, UNAUTHENTICATED)
        cookie = await self.sessions.open(SessionDraft(LOCAL_OPERATOR.party, SignInMethod.LINK))
        return CompletedSignIn(cookie, rules.own_path(content[head:].decode()))

    # The end.

    async def sign_out(self, cookie: str, back: str) -> str:
        """End the session of a cookie. Return where to sign out at the provider, or nothing."""
        try:
            session = await self.sessions.recognise(cookie)
            await self.sessions.end(session.party, session.id)
        except MalformedMessage:
            # It has ended before, which is what this person wants.
            return ""
        provider = self.providers.get(session.issuer)
        if provider is None:
            return ""
        return await provider.end_session_url(await self._unseal_hint(session), back)

    async def _admit(self, person: SignedInPerson, issuer: str) -> None:
        """Create or update the principal of a person. Raises MalformedMessage if it is disabled.

        The groups of the claim are in force before the session begins.
        """
        now, before = self.sessions.clock(), list[Principal | None]()

        def change(known: Principal | None) -> Principal | None:
            before.append(known)
            if known is None:
                by = f"issuer {issuer}"
                known = Principal(person.party, PrincipalKind.PERSON, created_by=by, created_at=now)
            if known.disabled or known.kind is not PrincipalKind.PERSON:
                return None
            return _described(known, person)

        stored = await self._parties.change(person.party, change)
        if stored is None or stored.disabled or stored.kind is not PrincipalKind.PERSON:
            log.warning("issuer %s: %s may not sign in here", issuer, person.party)
            raise MalformedMessage(DISABLED, UNAUTHENTICATED)
        await self._refresh()
        if self._audit is not None and stored != before[-1]:
            change_made = "added" if before[-1] is None else "changed by its provider"
            details = {"principal": stored.id, "kind": stored.kind, "change": change_made}
            self._audit.record(AuditType.PRINCIPAL_CHANGED, stored.id, details=details)

    def _provider(self, issuer: str) -> SignInProvider:
        provider = self.providers.get(issuer)
        if provider is None:
            raise MalformedMessage("this gateway knows no such provider", UNAUTHENTICATED)
        return provider

    def _read_transaction(self, cookie: str) -> LoginTransaction:
        words = unseal_token(self._keys.transactions, cookie)
        if words is None or len(words) != 5 or words[0] != _TRANSACTION:
            raise MalformedMessage(_FOREIGN, UNAUTHENTICATED)
        begun = LoginTransaction(*words[1:4], _read_time(words[4]))
        if begun.expires <= self.sessions.clock():
            raise MalformedMessage(_FOREIGN, UNAUTHENTICATED)
        return begun

    def _derive(self, seed: str) -> ProviderSecrets:
        """Return the words of a sign-in. The cookie has only the seed, so it reveals none."""
        return ProviderSecrets(
            *(
                base64.urlsafe_b64encode(
                    hmac.digest(self._keys.transactions, f"{use} {seed}".encode(), hashlib.sha256)
                )
                .rstrip(b"=")
                .decode()
                for use in ProviderSecrets._fields
            )
        )

    async def _seal_hint(self, person: SignedInPerson, issuer: str) -> bytes:
        if self._sealer is None or len(person.id_token) > MAX_HINT_BYTES:
            return b""
        context = hint_context(person.party, issuer, person.subject)
        try:
            return await self._sealer.seal(person.id_token.encode(), context)
        except Unavailable as problem:
            # The provider then asks the person at the sign-out.
            log.warning("A session of %s has no hint for its sign-out: %s", person.party, problem)
            return b""

    async def _unseal_hint(self, session: BrowserSession) -> str:
        if self._sealer is None or not session.hint:
            return ""
        context = hint_context(session.party, session.issuer, session.subject)
        try:
            found = await self._sealer.unseal(session.hint, context)
        except Unavailable as problem:
            log.warning("The hint of session %s cannot be read: %s", session.id, problem)
            return ""
        return "" if found is None else found.decode()


def _sign_link(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, hashlib.sha256)[:_LINK_SIGNATURE_BYTES]


def _encode_link(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _verified_link(key: bytes, token: str) -> bytes:
    """Return the content of a link; empty if it was forged or changed."""
    if len(token) > _MAX_LINK_LENGTH:
        return b""
    try:
        raw = base64.urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
    except ValueError:
        return b""
    # Base64 has several spellings of the same bytes. A second one would open the link once more.
    if _encode_link(raw) != token:
        return b""
    signature, content = raw[:_LINK_SIGNATURE_BYTES], raw[_LINK_SIGNATURE_BYTES:]
    is_ours = hmac.compare_digest(signature, _sign_link(key, content))
    return content if is_ours else b""


_LINK_REFUSED: Final = (
    "this link was used before, or is older than ten minutes; run `comity console` for another"
)


def _described(known: Principal, person: SignedInPerson) -> Principal:
    """Return a principal with the name and, if the provider tells them, the groups of a person."""
    told = known.groups if person.groups is None else person.groups
    return replace(known, label=person.label or known.label, groups=told)


def _describe_error(code: str) -> str:
    """Describe the error of a provider. Only its known codes are repeated to the person."""
    if code == "access_denied":
        return "the provider says that access was denied; ask its administrator"
    known = ("login_required", "interaction_required", "invalid_scope", "temporarily_unavailable")
    return (
        f"the provider answered with an error ({code})"
        if code in known
        else ("the provider answered with an error; start again, or ask its administrator")
    )


def _read_time(text: str) -> datetime:
    return datetime.fromtimestamp(int(text), UTC)


# The ID tokens of people who are signed in.


class IdTokenExchange:
    """Exchanges the ID tokens of people while they are signed in, at their issuers. (RFC 8693)

    An ID token never leaves this class, except to its own issuer. The callers get the answer.
    """

    def __init__(
        self,
        sessions: BrowserSessions,
        issuers: Mapping[str, SignInProvider],
        sealer: Sealer,
        is_active: Callable[[str], bool],
    ) -> None:
        self._sessions = sessions
        self._issuers = issuers
        self._sealer = sealer
        self._is_active = is_active
        # Digests of tokens that their issuer has refused, so that it is not asked again.
        self._refused: set[bytes] = set()

    def issuer_named(self, named: str) -> str:
        """Return the issuer of a setting: that one, or else the only one. Raises Unavailable."""
        if named in self._issuers:
            return named
        if not named and len(self._issuers) == 1:
            return next(iter(self._issuers))
        problem = f"there is no issuer {named} with a client_id" if named else "name one issuer"
        raise Unavailable(
            f"{problem} in [[identity.issuers]]; set identity_issuer in [servers.oauth]",
            UPSTREAM_DOWN,
        )

    async def exchange(
        self, party: str, issuer: str, fields: Mapping[str, str]
    ) -> dict[str, Any] | None:
        """Return the answer to the exchange of a person's ID token.

        None means that the person must sign in again, because no token is valid. `fields` say
        which token is wanted. Raises Unavailable.
        """
        provider, token = self._issuers[issuer], await self._find(party, issuer)
        if not token:
            return None
        subject = {"subject_token": token, "subject_token_type": ID_TOKEN}
        status, answer = await provider.request_token(
            {"grant_type": TOKEN_EXCHANGE, **fields, **subject}
        )
        if status == 200:
            _check_issued(answer.get("access_token"), token, provider)
            return answer
        code = answer.get("error")
        code = code if isinstance(code, str) and code in _KNOWN_ERRORS else ""
        if code in _REFUSED_TOKEN:
            log.info("The issuer %s refused the ID token of %s: %s", issuer, party, code)
            self._forget(token)
            return None
        raise Unavailable(
            f"the issuer {issuer} exchanged no token: HTTP {status} {code}".rstrip(), UPSTREAM_DOWN
        )

    def _forget(self, token: str) -> None:
        if len(self._refused) >= MAX_REFUSED_TOKENS:
            self._refused.clear()
        self._refused.add(_digest(token))

    async def _find(self, party: str, issuer: str) -> str:
        """Return the newest valid ID token of a person, or an empty text."""
        if not self._is_active(party):
            return ""
        found = [
            each
            for each in await self._sessions.list_of_party(party)
            if each.method is SignInMethod.OPENID and each.issuer == issuer and each.hint
        ]
        for session in sorted(found, key=lambda each: each.created_at, reverse=True):
            token = await self._unseal(session)
            if token and _digest(token) not in self._refused:
                return token
        return ""

    async def _unseal(self, session: BrowserSession) -> str:
        """Return the ID token of a session, or an empty text if it is not valid any more.

        Its signature was verified at the sign-in, and it is sealed since.
        """
        context = hint_context(session.party, session.issuer, session.subject)
        plain = await self._sealer.unseal(session.hint, context)
        token = "" if plain is None else plain.decode()
        claims, latest = claims_in(token), self._sessions.clock() + ID_TOKEN_MARGIN
        expires = claims.get("exp")
        is_own = claims.get("iss") == session.issuer and claims.get("sub") == session.subject
        is_fresh = isinstance(expires, int | float) and expires > latest.timestamp()
        return token if is_own and is_fresh else ""


def _check_issued(issued: object, id_token: str, provider: SignInProvider) -> None:
    """Raise Unavailable for a token with which its receiver could act as the person here."""
    if not isinstance(issued, str):
        return
    named: object = claims_in(issued).get("aud")
    audiences = cast("list[object]", named) if isinstance(named, list) else [named]
    is_own = provider.is_own_audience([each for each in audiences if isinstance(each, str)])
    if id_token in issued or is_own:
        raise Unavailable("the issuer gave a token that is for this gateway itself", UPSTREAM_DOWN)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
