"""The account that each call uses, and calls that wait until their owner has signed in."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from comity.accounts import messages
from comity.accounts.access import AccountAccess
from comity.accounts.model import ACCOUNT_USE, SHARED, Account, AccountKey
from comity.accounts.service import AccountService
from comity.approvals.model import (
    OWNER,
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalDraft,
    ApprovalFilter,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
    arguments_digest,
)
from comity.approvals.pending_calls import (
    ApprovedCall,
    CallHold,
    GoOn,
    PendingCall,
    PendingCalls,
)
from comity.catalog.access import ToolReviewStatus
from comity.errors import (
    ACCESS_DENIED,
    SIGN_IN_REQUIRED,
    UPSTREAM_FAILED,
    MalformedMessage,
    Unavailable,
)
from comity.identity.login.model import BrowserSession
from comity.mcp.actors import Actor, Authority, PrincipalKind
from comity.mcp.entries import CatalogEntry
from comity.mcp.jsonrpc import Frame
from comity.mcp.refusals import Refusal
from comity.policy.generation import PolicyGeneration
from comity.policy.grants import Effect
from comity.policy.snapshot import PolicyEngine
from comity.sessions.calls import Call
from comity.toolkit.background import BackgroundTasks

log = logging.getLogger(__name__)

MAX_REMEMBERED_OWNERS: Final = 10_000
MAX_REQUESTS: Final = 1_000
MAX_REFUSALS: Final = 3
"""How often one call waits for another sign-in, because its server refused the last one."""

BARE_CHALLENGE: Final = "Bearer"
"""The challenge of a server that sends none with its refusal."""

type Proceed = Callable[[GoOn], Awaitable[None]]
"""Runs the checks that a call still has before it, and sends it."""


def sign_in_error(server: str, challenge: str = "") -> Unavailable:
    """Return the error of a server that demands a sign-in."""
    return Unavailable(
        f"server {server!r} demands a sign-in; run `comity accounts connect {server}`, or use the "
        "console",
        SIGN_IN_REQUIRED,
        challenge=challenge,
    )


class AccountSelector:
    """Decides whose account an actor uses at a server."""

    def __init__(
        self,
        accounts: AccountService,
        policy_engine: PolicyEngine,
        people: Callable[[], Iterable[str]],
        generation: PolicyGeneration,
    ) -> None:
        self.accounts = accounts
        self._policy_engine = policy_engine
        self._people = people
        self._generation = generation
        self._owners: dict[tuple[Authority, str], tuple[int, str | Refusal]] = {}

    def key_for(self, actor: Actor, server: str) -> AccountKey | Refusal | None:
        """Return the account of an actor, a refusal, or None if the server needs none."""
        mode = self.accounts.mode_of(server)
        if mode == "none":
            return None
        if mode == "shared":
            return AccountKey(server, SHARED)
        if actor.kind is PrincipalKind.PERSON:
            return AccountKey(server, actor.party)
        owner = self._owner_for(actor, server)
        return owner if isinstance(owner, Refusal) else AccountKey(server, owner)

    def _owner_for(self, actor: Actor, server: str) -> str | Refusal:
        """Return the person whose account an agent may use. Grants decide that."""
        asked = (actor.authority, server)
        known = self._owners.get(asked)
        if known is not None and known[0] == self._generation.number:
            return known[1]
        number = self._generation.number
        owners = {each.owner for each in self.accounts.accounts_of(server)}
        people = sorted(owners.union(self._people()) - {SHARED})
        found = [person for person in people if self._may_use(actor, server, person)]
        answer = found[0] if len(found) == 1 else _owner_refusal(actor, server, len(found))
        # The end of a grant does not change the generation, so such an answer is never kept.
        if all(self._policy_engine.never_expires(actor, server, each) for each in people):
            if len(self._owners) >= MAX_REMEMBERED_OWNERS:
                self._owners.clear()
            self._owners[asked] = number, answer
        return answer

    def _may_use(self, actor: Actor, server: str, person: str) -> bool:
        judged = self._policy_engine.authorize(actor, ACCOUNT_USE, server, person)
        # An account is never open to all by default. A grant must name its verb.
        grant = judged.grant
        return judged.effect is Effect.ALLOW and grant is not None and grant.verb == ACCOUNT_USE


def _owner_refusal(actor: Actor, server: str, count: int) -> Refusal:
    reason = (
        f"{actor.party} may use no account at {server!r}; an operator can add the grant "
        f"{ACCOUNT_USE} on {server}/person:NAME"
        if not count
        else f"{actor.party} may use {count} accounts at {server!r}, and it must be one"
    )
    return Refusal(ACCESS_DENIED, reason)


class ConnectionAccount:
    """The account of one connection: of an actor, or of the gateway itself for the lists."""

    def __init__(self, selector: AccountSelector, server: str, actor: Actor | None) -> None:
        self._selector = selector
        self._accounts = selector.accounts
        self._server = server
        self._actor = actor

    def _key(self, *, is_for_caller: bool) -> AccountKey | None:
        if self._actor is None:
            if is_for_caller and not self._accounts.is_shared(self._server):
                # The call was sent before each caller had an account here. The account that reads
                # the lists is that of another person.
                return None
            return self._accounts.catalog_key(self._server)
        key = self._selector.key_for(self._actor, self._server)
        return None if isinstance(key, Refusal) else key

    def is_needed(self) -> bool:
        return self._accounts.mode_of(self._server) != "none"

    def authorization(self, *, is_for_caller: bool = False) -> bytes:
        key = self._key(is_for_caller=is_for_caller)
        return b"" if key is None else _header(self._accounts.tokens.held(key))

    async def prepare(self) -> None:
        key = self._key(is_for_caller=False)
        if key is not None:
            await self._accounts.tokens.token_for(key)

    async def renew(
        self, refused: bytes, status: int, challenge: str, *, is_for_caller: bool = False
    ) -> bytes:
        demanded = messages.read_challenge(challenge)
        if demanded is None and status == 401:
            demanded, challenge = await self._accounts.find_challenge(self._server), BARE_CHALLENGE
        if demanded is None or not self._accounts.on_challenge(self._server, demanded):
            raise Unavailable(
                f"the server answered HTTP {status}: check the credentials in its headers",
                UPSTREAM_FAILED,
            )
        key = self._key(is_for_caller=is_for_caller)
        if key is None:
            raise sign_in_error(self._server, challenge)
        if status == 403:
            if not demanded.needs_scopes:
                raise Unavailable("the server refused the account of this call", UPSTREAM_FAILED)
            is_new = self._accounts.tokens.lacks_scopes(key, demanded.scopes)
            await self._accounts.tokens.require_scopes(key, demanded.scopes)
            if not self._accounts.tokens.uses_id_token(key):
                raise sign_in_error(self._server, challenge)
            if not is_new:
                raise Unavailable(
                    "the server demands scopes that its issuer does not grant", UPSTREAM_FAILED
                )
        token = await self._accounts.tokens.token_for(key, refused.decode().partition(" ")[2])
        if token is None:
            raise sign_in_error(self._server, challenge)
        return _header(token)


class SessionAccounts:
    """Connects the accounts that the sign-in of a person to Comity gives, without a page."""

    def __init__(self, access: AccountAccess, find_actor: Callable[[str], Actor | None]) -> None:
        self._access = access
        self._find_actor = find_actor
        self._background_tasks = BackgroundTasks("accounts of people who signed in")

    def on_session_opened(self, session: BrowserSession) -> None:
        actor = self._find_actor(session.party)
        if actor is None or not session.issuer:
            return
        for key in self._access.accounts.keys_awaiting(session.party, session.issuer):
            if self._access.may_know(actor, key.server):
                self._background_tasks.start(self._connect(key))

    async def _connect(self, key: AccountKey) -> None:
        try:
            await self._access.accounts.tokens.token_for(key)
        except Unavailable as error:
            log.warning("%s is not connected at %r yet: %s", key.owner, key.server, error)

    def stop(self) -> None:
        self._background_tasks.cancel()


def _header(token: str) -> bytes:
    return f"Bearer {token}".encode("ascii") if token else b""


@dataclass(frozen=True, slots=True)
class SignedInCall(ApprovedCall):
    """A call that goes on once its owner has signed in."""

    proceed: Proceed

    async def record_intent(self, request: ApprovalRequest) -> Refusal | None:
        # The later checks record it, because it may still need an approval.
        return None

    @property
    def audit_id(self) -> str:
        return ""

    def record_not_run(self) -> None:
        return

    async def run(self, request: ApprovalRequest, go_on: GoOn) -> None:
        try:
            await self.proceed(go_on)
        except (Unavailable, MalformedMessage) as error:
            self.call.fail(error)


class SignInHold(PendingCall):
    """A call that waits until its owner has signed in."""

    async def _open_request(self) -> ApprovalRequest:
        request = await super()._open_request()
        if request.state is ApprovalState.APPROVED:
            # It was accepted by an account that has ended since. The owner must sign in again.
            await self.approvals.withdraw(request, "the account was disconnected")
            request = await super()._open_request()
        return request


class SignInGate:
    """Gives each call its account, or holds it until the owner has signed in."""

    def __init__(self, selector: AccountSelector, pending_calls: PendingCalls) -> None:
        self._selector = selector
        self._accounts = selector.accounts
        self._pending_calls = pending_calls
        self._background_tasks = BackgroundTasks("sign-ins")
        self._accounts.connection_listeners.append(self._on_connected)

    def applies_to(self, server: str) -> bool:
        return self._accounts.mode_of(server) != "none"

    def check(
        self, call: Call, entry: CatalogEntry
    ) -> Refusal | AccountKey | Awaitable[Refusal | AccountKey | None] | None:
        """Return None if the call has its account, or the account that must be connected."""
        key = self._selector.key_for(call.client_stream.actor, entry.server)
        if key is None or isinstance(key, Refusal):
            return key
        call.account_owner = key.owner
        if self._accounts.tokens.held_if_fresh(key):
            return None
        return self._refreshed(key)

    async def _refreshed(self, key: AccountKey) -> Refusal | AccountKey | None:
        try:
            token = await self._accounts.tokens.token_for(key)
        except Unavailable as error:
            return Refusal(error.fault, str(error), error.retry_after)
        return key if token is None else None

    def hold(
        self,
        call: Call,
        entry: CatalogEntry,
        review: ToolReviewStatus,
        frame: Frame,
        key: AccountKey,
        proceed: Proceed,
    ) -> CallHold:
        """Return the hold of a call whose owner must sign in."""
        action = SignedInCall(
            self._pending_calls, call, entry, review, frame.arguments, None, proceed
        )
        draft = self._draft(call, entry, key)
        return SignInHold(
            self._pending_calls, call, frame, draft, action, definition=entry.definition
        )

    def retry_for(
        self,
        call: Call,
        entry: CatalogEntry,
        review: ToolReviewStatus,
        frame: Frame,
        proceed: Proceed,
    ) -> "CallSignInRetry":
        return CallSignInRetry(self, call, entry, review, frame, proceed)

    def key_of(self, call: Call, server: str) -> AccountKey | None:
        key = self._selector.key_for(call.client_stream.actor, server)
        return None if isinstance(key, Refusal) else key

    def stop(self) -> None:
        self._background_tasks.cancel()

    def _draft(self, call: Call, entry: CatalogEntry, key: AccountKey) -> ApprovalDraft:
        actor, known = call.client_stream.actor, self._accounts.tokens.find(key)
        whose = "its own account" if key.owner == actor.party else f"the account of {key.owner}"
        whose = whose if key.owner else "the shared account"
        scopes = () if known is None else known.missing_scopes
        about: dict[str, object] = {"tool": entry.key, OWNER: key.owner}
        if scopes:
            about["scopes"] = list(scopes)
        # A new sign-in gives the account another version, and so later calls another request.
        version = 0 if known is None else known.version
        return ApprovalDraft(
            kind=ApprovalKind.SIGN_IN,
            asker=actor.party,
            server=entry.server,
            tool=entry.name,
            digest=arguments_digest(
                ["sign-in", actor.party, *key, version, *scopes], self._pending_calls.key
            ),
            message=f"{actor.party} needs {whose} at {entry.server} to call {entry.key}",
            about=about,
            own=True,
            trace=call.ensure_trace_id(),
        )

    def _on_connected(self, key: AccountKey) -> None:
        self._background_tasks.start(self._accept_requests(key))

    async def _accept_requests(self, key: AccountKey) -> None:
        """Accept the requests that waited for an account. Of several nodes, the first does it."""
        account = self._accounts.tokens.find(key)
        if account is None:
            return
        with suppress(Unavailable):
            for request in await self._open_requests(account):
                answer = ApprovalAnswer(
                    account.connected_by,
                    ApprovalDecision.ACCEPT,
                    self._pending_calls.approvals.clock(),
                    "signed in",
                )
                await self._pending_calls.approvals.store_answer(request, answer)

    async def _open_requests(self, account: Account) -> list[ApprovalRequest]:
        criteria = ApprovalFilter(
            states=(ApprovalState.PENDING, ApprovalState.DEFERRED),
            kind=ApprovalKind.SIGN_IN,
            server=account.server,
        )
        found = await self._pending_calls.approvals.store.find(criteria, MAX_REQUESTS)
        return [
            each
            for each in found
            if each.about.get(OWNER) == account.owner and each.created_at < account.connected_at
        ]


class CallSignInRetry:
    """Holds a call that its server refused, until the owner of its account has signed in."""

    def __init__(
        self,
        gate: SignInGate,
        call: Call,
        entry: CatalogEntry,
        review: ToolReviewStatus,
        frame: Frame,
        proceed: Proceed,
    ) -> None:
        self.go_on: GoOn | None = None
        self.on_hold: Callable[[], None] | None = None
        self.client_wait: timedelta | None = None
        self._proceed = proceed
        self._refusals = 0
        self._gate = gate
        self._call = call
        self._entry = entry
        self._review = review
        self._frame = frame

    def survives_refusal(self, call: Call, error: Unavailable | MalformedMessage) -> bool:
        """Hold a call that the server did not run for want of a sign-in."""
        go_on, self.go_on = self.go_on, None
        if go_on is None or not isinstance(error, Unavailable) or not error.challenge:
            return False
        self._refusals += 1
        if self._refusals > MAX_REFUSALS:
            return False
        key = self._gate.key_of(call, self._entry.server)
        if key is None:
            return False

        call.connection = None
        hold = self._gate.hold(call, self._entry, self._review, self._frame, key, self._proceed)
        if self.on_hold is not None:
            self.on_hold()
        hold.start(go_on, self.client_wait)
        return True
