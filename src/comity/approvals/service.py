"""Approval requests: open, wait, answer, consume and expire.

Every domain that asks people does it through `ApprovalService`. `comity.approvals.kinds` has the
rules for each kind of request.
"""

import asyncio
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from comity.approvals import presentation
from comity.approvals.answers import content_fingerprint
from comity.approvals.call_results import CallResults
from comity.approvals.kinds import RULES_BY_KIND, answer_problem, expiry_for, is_still_valid
from comity.approvals.metrics import ApprovalMetrics
from comity.approvals.model import (
    ANSWER_OWN_VERB,
    ANSWER_VERB,
    OWNER,
    RANDOM_ID_BYTES,
    TOOL_FACTS,
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalDraft,
    ApprovalFilter,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
    ApprovalStore,
    answer_refusal_reason,
    describe_approvers,
    new_request_id,
)
from comity.approvals.presentation import (
    PAGE_PATH,
    ApprovalLink,
    ApprovalLinks,
    ApprovalView,
    Seen,
)
from comity.approvals.settings import ApprovalSettings
from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditFacts, AuditLog
from comity.errors import (
    ACCESS_DENIED,
    EXHAUSTED,
    INVALID_PARAMS,
    NOTHING_HERE,
    MalformedMessage,
    Unavailable,
)
from comity.mcp.actors import ADMIN_READ, GATEWAY, LOCAL_OPERATOR, Actor, PrincipalKind
from comity.policy.grants import ANY, ANY_TARGET, Effect, GrantSource
from comity.policy.snapshot import PolicyEngine, WallClock
from comity.telemetry.metrics import MetricFamily
from comity.toolkit.background import BackgroundTasks

log = logging.getLogger(__name__)

OPEN_STATES: Final = (ApprovalState.PENDING, ApprovalState.DEFERRED)
NOT_FOUND_TEXT: Final = (
    "this approval request does not exist, or you cannot see it; `comity approvals` lists them"
)

REPORT_INTERVAL: Final = timedelta(seconds=10)
"""How often `wait` reports that a request is still open."""

type Watcher = Callable[[ApprovalRequest], None]
"""Called with each request that is new or has changed."""


@dataclass(frozen=True, slots=True)
class KindHandler:
    """The functions that a domain adds to the rules of one kind.

    `refusal_reason` returns why an actor cannot answer a request, or None. `on_answer` acts on an
    answer, after it was kept.
    """

    refusal_reason: Callable[[ApprovalRequest, Actor], str | None] | None = None
    on_answer: Callable[[ApprovalRequest, Actor], Awaitable[None]] | None = None


_NO_HANDLER: Final = KindHandler()


def _always() -> bool:
    return True


class ApprovalService:
    """The approval requests of this node: it opens, waits for, answers and ends them."""

    def __init__(
        self,
        store: ApprovalStore,
        policy_engine: PolicyEngine,
        audit_log: AuditLog | None = None,
        settings: ApprovalSettings | None = None,
        clock: WallClock = lambda: datetime.now(UTC),
        *,
        approve_own: bool = False,
        public_url: str = "",
    ) -> None:
        """`approve_own`: a person with the grant of everything may approve its own requests."""
        self.store = store
        self.settings = settings or ApprovalSettings()
        self._has_notifiers = bool(self.settings.notifiers)
        # Where the pages of requests are; known once the gateway listens.
        self.public_url = public_url
        self._approve_own = approve_own
        self.clock = clock
        self.watchers: list[Watcher] = []
        # Called only for changes at this node, so that of several nodes one notifies people.
        self.notifiers: list[Watcher] = []
        self.handlers: dict[ApprovalKind, KindHandler] = {}
        self._key = secrets.token_bytes(32)
        self._policy_engine = policy_engine
        self._audit_log = audit_log
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._open_ids_by_requester: dict[str, set[str]] = {}
        self._requesters: dict[str, str] = {}
        self._background_tasks = BackgroundTasks("the inbox")
        self._metrics = ApprovalMetrics()
        self.results = CallResults(clock)

    def set_origin(self, origin: str) -> None:
        """Set the address of the pages where people answer."""
        self.public_url = origin

    def add_handler(self, kind: ApprovalKind, handler: KindHandler) -> None:
        """Register what a domain adds to a kind. Each kind has one handler at most."""
        assert kind not in self.handlers, f"{kind} has a handler already"
        self.handlers[kind] = handler

    # Requests.

    def may_answer_own(self, actor: Actor) -> bool:
        """Return whether an actor may answer its own requests: a person with a grant for just that.

        With `approve_own`, the grant of every verb on every target is enough.
        """
        if actor.kind is not PrincipalKind.PERSON:
            return False
        try:
            judged = self._policy_engine.authorize(actor, ANSWER_OWN_VERB, "", "")
        except Unavailable:
            return False
        grant = judged.grant
        if judged.effect is not Effect.ALLOW or grant is None:
            return False
        held = (grant.subject, grant.verb, grant.target)
        is_full = held == (actor.party, ANY, ANY_TARGET)
        return (
            grant.verb == ANSWER_OWN_VERB
            or grant.source is GrantSource.BUILT_IN
            or (is_full and self._approve_own)
        )

    @property
    def has_open(self) -> bool:
        """Whether a request of this node waits for an answer, or its approval for a use."""
        return bool(self._requesters)

    @property
    def open_count(self) -> int:
        """How many requests of this node wait for an answer."""
        return len(self._requesters)

    def metric_families(self) -> list[MetricFamily]:
        return self._metrics.families(len(self._requesters))

    def may_approve_own(self, actor: Actor) -> bool:
        """Return whether the asker may answer too. The local user may, with the operator token."""
        return self.may_answer_own(LOCAL_OPERATOR if actor.lacks_token else actor)

    async def request(self, draft: ApprovalDraft) -> ApprovalRequest:
        """Return an earlier request that answers this question, or open one. Raises Unavailable."""
        if RULES_BY_KIND[draft.kind].remembered_ends:
            known = await self.store.find_latest(draft.digest)
            if known and is_still_valid(known, self.clock(), self.settings.denial_cooldown):
                return known
        return await self.open(self.create(draft))

    def create(self, draft: ApprovalDraft) -> ApprovalRequest:
        """Return a request with an id, for callers that must know the id before it is open."""
        now = self.clock()
        return ApprovalRequest(
            id=new_request_id(now, secrets.token_bytes(RANDOM_ID_BYTES)),
            kind=draft.kind,
            asker=draft.asker,
            server=draft.server,
            tool=draft.tool,
            digest=draft.digest,
            message=draft.message,
            about=draft.about,
            created_at=now,
            expires_at=expiry_for(draft, now, self.settings.request_ttl),
            quorum=draft.quorum,
            own=draft.own,
            trace=draft.trace,
            options=draft.options,
            schema=draft.schema,
        )

    async def open(self, request: ApprovalRequest) -> ApprovalRequest:
        """Keep a request and notify its approvers. Raises Unavailable if too many are open.

        Returns the live request with the same digest where there is one.
        """
        own = len(self._open_ids_by_requester.get(request.asker, ()))
        if (
            own >= self.settings.max_open_per_principal
            or len(self._requesters) >= self.settings.max_open
        ):
            raise Unavailable(
                "too many questions wait for an answer already",
                EXHAUSTED,
                self.settings.client_wait,
            )
        # It is counted before it is kept, so that many at once cannot pass the limit together.
        self._open_ids_by_requester.setdefault(request.asker, set()).add(request.id)
        self._requesters[request.id] = request.asker
        try:
            kept = await self.store.open(request, with_notice=self._has_notifiers)
        except BaseException:
            self._forget(request.id)
            raise
        if kept.id != request.id:
            self._forget(request.id)
            return kept
        self._record(
            AuditType.APPROVAL_REQUESTED,
            kept,
            AuditResult.PENDING,
            kept.asker,
            _audit_details(kept),
        )
        self._notify_watchers(kept)
        return kept

    async def wait(
        self,
        request: ApprovalRequest,
        timeout: timedelta | None = None,
        *,
        is_wanted: Callable[[], bool] = _always,
        on_poll: Watcher | None = None,
    ) -> ApprovalRequest:
        """Return the request once it is answered or has ended, and expire it in time.

        The request is still open where `timeout` is over, or where `is_wanted` has become false and
        the caller has called `wake_waiters`. While it is open, `on_poll` is called every few
        seconds.
        """
        now = asyncio.get_running_loop().time
        ends = math.inf if timeout is None else now() + timeout.total_seconds()
        every = math.inf if on_poll is None else REPORT_INTERVAL.total_seconds()
        seen = None
        while request.is_open and is_wanted():
            if request.expires_at <= self.clock():
                return await self._expire(request)
            if on_poll is not None and request.state is seen:
                on_poll(request)
            left, seen = ends - now(), request.state
            if left <= 0:
                break
            request = await self._until_change(request, min(left, every))
        return request

    async def _until_change(self, request: ApprovalRequest, seconds: float) -> ApprovalRequest:
        """Return the request once it has changed, or as it is when the time is over."""
        left = min((request.expires_at - self.clock()).total_seconds(), seconds)
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(request.id, []).append(waiter)
        try:
            current = await self.store.get(request.id)
            if current is None or current.state is not request.state:
                return current or request
            async with asyncio.timeout(max(left, 0)):
                await waiter
        except TimeoutError:
            pass
        finally:
            self._remove_waiter(request.id, waiter)
        return await self.store.get(request.id) or request

    async def _expire(self, request: ApprovalRequest) -> ApprovalRequest:
        """End an expired request, unless an approver answered it at the last moment."""
        # The sweep ends only what is past its time, and an approval has a time of its own.
        while await self.expire_overdue():
            current = await self.store.get(request.id)
            if current is None or not current.is_open:
                return current or request
        return await self.store.get(request.id) or request

    async def withdraw(self, request: ApprovalRequest, reason: str) -> bool:
        """End a request whose subject is gone. Returns False if it had ended before."""
        ended = await self.store.end(
            request.id, ApprovalState.WITHDRAWN, self.clock(), with_notice=self._has_notifiers
        )
        if ended is not None:
            self._record_end(ended, reason)
        return ended is not None

    async def consume(self, request: ApprovalRequest, call: str) -> ApprovalRequest | None:
        """Consume an approval for one call. Returns None if another call was first.

        The approval of a kind that is not consumed stays as it is.
        """
        if not RULES_BY_KIND[request.kind].is_consumed:
            return request
        used = await self.store.consume(
            request.id, call, self.clock(), with_notice=self._has_notifiers
        )
        if used is not None:
            self._forget(used.id)
            self._record(
                AuditType.APPROVAL_CONSUMED, used, AuditResult.SUCCESS, used.asker, {"call": call}
            )
            self._notify_watchers(used)
        return used

    async def release(self, request: ApprovalRequest, call: str) -> None:
        """Make an approval valid again whose call never left."""
        if not RULES_BY_KIND[request.kind].is_consumed:
            return
        restored = await self.store.release(request.id, call)
        if restored is not None:
            self._record(
                AuditType.APPROVAL_RELEASED, restored, AuditResult.SUCCESS, GATEWAY, {"call": call}
            )
            self._notify_watchers(restored)

    async def erase_content(self, request: ApprovalRequest) -> None:
        """Delete what an approver filled in, after it was delivered or the request has ended."""
        if RULES_BY_KIND[request.kind].is_erased and any(
            answer.content for answer in request.answers
        ):
            await self.store.erase_content(request.id)

    # Answers.

    def ended_error(self, request: ApprovalRequest) -> MalformedMessage:
        """Return the refusal of an answer that comes after the end of a request."""
        state = "expired" if request.is_open else request.state
        by = f" by {request.answers[-1].by}" if request.answers and not request.is_open else ""
        return MalformedMessage(f"this approval request is already {state}{by}", INVALID_PARAMS)

    def refusal_reason(self, request: ApprovalRequest, actor: Actor) -> str | None:
        """Return why an actor cannot answer a request, or None if it can."""
        reason = answer_refusal_reason(
            request,
            actor,
            may_answer=self._has_grant(actor, ANSWER_VERB, request),
            may_answer_own=self.may_answer_own(actor),
        )
        authority = RULES_BY_KIND[request.kind].authority
        if reason is None and authority is not None:
            server = request.server if authority.is_for_server else ""
            is_allowed = self._is_allowed(actor, authority.verb, server)
            reason = None if is_allowed else authority.refusal_reason
        further = self.handlers.get(request.kind, _NO_HANDLER).refusal_reason
        return further(request, actor) if reason is None and further is not None else reason

    def describe_approvers(self, request: ApprovalRequest, actor: Actor) -> str:
        """Describe who can approve a request, for an actor who may not know other names."""
        # An actor that asked without the operator token approves with it.
        judged = LOCAL_OPERATOR if actor.lacks_token else actor
        may = request.quorum == 1 and self.refusal_reason(request, judged) is None
        return "you" if may else describe_approvers(request)

    def own_refusal_reason(self, request: ApprovalRequest, actor: Actor) -> str:
        """Return why an approver cannot answer its own request; empty for other actors."""
        if actor.party != request.asker or not self._has_grant(actor, ANSWER_VERB, request):
            return ""
        return self.refusal_reason(request, actor) or ""

    def may_see(self, request: ApprovalRequest, actor: Actor) -> bool:
        """Return whether an actor is the asker, an approver or an auditor of a request."""
        if actor.party == request.asker or self._has_grant(actor, ANSWER_VERB, request):
            return True
        if request.kind is ApprovalKind.SIGN_IN and actor.party == request.about.get(OWNER):
            return True
        return self._has_grant(actor, ADMIN_READ, request)

    async def get(self, actor: Actor, id: str) -> ApprovalRequest:
        """Return a request that the actor may see. Raises MalformedMessage."""
        ask = await self.store.get(id)
        if ask is None or not self.may_see(ask, actor):
            raise MalformedMessage(NOT_FOUND_TEXT, NOTHING_HERE)
        return ask

    async def page(
        self,
        actor: Actor,
        states: Collection[ApprovalState] = OPEN_STATES,
        after: str = "",
        limit: int = 250,
    ) -> tuple[Sequence[ApprovalRequest], str]:
        """Return the requests that an actor may see, and the id to go on after, or nothing."""
        found = await self.store.page(states, after, limit)
        following = found[-1].id if len(found) >= limit else ""
        return [ask for ask in found if self.may_see(ask, actor)], following

    async def find(
        self, actor: Actor, criteria: ApprovalFilter, limit: int = 250
    ) -> tuple[Sequence[ApprovalRequest], str]:
        """Return the matching requests that an actor may see, and the id to go on after."""
        found = await self.store.find(criteria, limit)
        following = found[-1].id if len(found) >= limit else ""
        return [ask for ask in found if self.may_see(ask, actor)], following

    def may_see_all(self, actor: Actor) -> bool:
        """Return whether a grant lets an actor see every request."""
        try:
            seen = [
                self._policy_engine.authorize(actor, verb, "", "")
                for verb in (ADMIN_READ, ANSWER_VERB)
            ]
        except Unavailable:
            return False
        return any(each.effect is Effect.ALLOW and each.grant is not None for each in seen)

    async def answer(
        self,
        actor: Actor,
        id: str,
        decision: ApprovalDecision,
        reason: str = "",
        content: Mapping[str, object] | None = None,
    ) -> ApprovalRequest:
        """Keep an answer and record it in the audit log. Raises MalformedMessage."""
        ask = await self.get(actor, id)
        because = self.refusal_reason(ask, actor)
        if because is not None:
            self._record(
                AuditType.APPROVAL_ANSWERED,
                ask,
                AuditResult.BLOCKED,
                actor.party,
                {"reason": because},
            )
            raise MalformedMessage(because, ACCESS_DENIED)
        answer = ApprovalAnswer(actor.party, decision, self.clock(), reason, content or {})
        unfit = answer_problem(ask, decision, answer.content, answer.at)
        if unfit is not None:
            raise MalformedMessage(unfit, INVALID_PARAMS)
        answered = await self.store_answer(ask, answer)
        if answered is None:
            raise self.ended_error(await self.store.get(id) or ask)
        on_answer = self.handlers.get(ask.kind, _NO_HANDLER).on_answer
        if on_answer is not None:
            await on_answer(answered, actor)
        return answered

    async def store_answer(
        self, request: ApprovalRequest, answer: ApprovalAnswer
    ) -> ApprovalRequest | None:
        """Keep the answer of an approver. Returns None if it comes too late.

        The content may be a secret, so the audit log has only its fingerprint.
        """
        answered = await self.store.answer(
            request.id,
            answer,
            answer.at + self.settings.approval_ttl,
            with_notice=self._has_notifiers,
        )
        if answered is None:
            return None
        said: dict[str, object] = {"verdict": answer.verdict, "state": answered.state}
        said |= {"reason": answer.reason} if answer.reason else {}
        said |= (
            {"content": content_fingerprint(self._key, answer.content)} if answer.content else {}
        )
        await self._record_durably(AuditType.APPROVAL_ANSWERED, answered, answer.by, said)
        self._notify_watchers(answered)
        return answered

    # Changes at other nodes, and time.

    def on_changed(self, id: str) -> None:
        """Handle a change of a request on any node. An empty id means any request."""
        for each in [id] if id else list(self._waiters):
            self.wake_waiters(each)
        if id and (self.watchers or id in self._requesters):
            self._background_tasks.start(self._reread(id))

    async def expire_overdue(self) -> int:
        """End the requests that are past their time, and return how many there were."""
        ended = await self.store.expire(self.clock(), with_notice=self._has_notifiers)
        for ask in ended:
            self._record_end(ask)
            await self.erase_content(ask)
        return len(ended)

    def check(self, keep_alive_seconds: float) -> None:
        if not len(self._background_tasks):
            self._background_tasks.start(self._expire_in_background())

    def stop(self) -> None:
        self._background_tasks.cancel()

    async def _expire_in_background(self) -> None:
        try:
            await self.expire_overdue()
        except Unavailable as error:
            log.debug("Approval requests are not updated: %s", error)

    async def _reread(self, id: str) -> None:
        """Tell the watchers of this node about a change at another node."""
        try:
            ask = await self.store.get(id)
        except Unavailable:
            return
        is_known_here = id in self._requesters
        if ask is None or not ask.is_open:
            self._forget(id)
        # The watchers were told of a request of this node when it was opened.
        if ask is not None and (ask.answers or not ask.is_open or not is_known_here):
            for watcher in self.watchers:
                watcher(ask)

    def _record_end(self, request: ApprovalRequest, reason: str = "") -> None:
        said: dict[str, object] = {"state": request.state}
        said |= {"reason": reason} if reason else {}
        self._record(AuditType.APPROVAL_ENDED, request, AuditResult.BLOCKED, GATEWAY, said)
        self._notify_watchers(request)

    def _notify_watchers(self, request: ApprovalRequest) -> None:
        self._metrics.on_change(request)
        self.wake_waiters(request.id)
        self._call_watchers(request, (*self.notifiers, *self.watchers))

    def _call_watchers(self, request: ApprovalRequest, watchers: Sequence[Watcher]) -> None:
        if not request.is_open:
            self._forget(request.id)
        for watcher in watchers:
            try:
                watcher(request)
            except Exception:
                log.exception("a listener for approval requests failed")

    def _forget(self, id: str) -> None:
        asker = self._requesters.pop(id, None)
        if asker is not None:
            own = self._open_ids_by_requester[asker]
            own.discard(id)
            if not own:
                del self._open_ids_by_requester[asker]

    def wake_waiters(self, id: str) -> None:
        for waiter in self._waiters.pop(id, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _remove_waiter(self, id: str, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiters.get(id)
        if waiters is not None and waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[id]

    def _has_grant(self, actor: Actor, verb: str, request: ApprovalRequest) -> bool:
        """Return whether a grant, and not a default, allows this: no default makes an approver."""
        try:
            judged = self._policy_engine.authorize(actor, verb, request.server, request.tool)
        except Unavailable:
            return False
        return judged.effect is Effect.ALLOW and judged.grant is not None

    def _is_allowed(self, actor: Actor, verb: str, server: str) -> bool:
        try:
            return self._policy_engine.authorize(actor, verb, server, "").effect is Effect.ALLOW
        except Unavailable:
            return False

    def _record(
        self,
        type: AuditType,
        request: ApprovalRequest,
        result: AuditResult,
        by: str,
        details: Mapping[str, object],
    ) -> None:
        if self._audit_log is not None:
            self._audit_log.record(type, by, **_facts_of(request, result, details))

    async def _record_durably(
        self, type: AuditType, request: ApprovalRequest, by: str, details: Mapping[str, object]
    ) -> None:
        if self._audit_log is not None:
            facts = _facts_of(request, AuditResult.SUCCESS, details)
            await self._audit_log.write(self._audit_log.event(type, by, **facts))


def _facts_of(
    request: ApprovalRequest, result: AuditResult, details: Mapping[str, object]
) -> AuditFacts:
    """The facts of an audit event about an approval request."""
    return AuditFacts(
        server=request.server,
        tool=request.tool,
        result=result,
        trace=request.trace,
        call=request.call,
        details={"approval": request.id, "kind": request.kind, **details},
    )


def _audit_details(request: ApprovalRequest) -> Mapping[str, object]:
    about = {name: said for name, said in request.about.items() if name not in TOOL_FACTS}
    return {
        "message": request.message,
        "about": about,
        "digest": request.digest,
        "expires_at": request.expires_at.isoformat(),
        "quorum": request.quorum,
    }


MIN_ID_PREFIX: Final = 4
ID_LENGTH: Final = 26
_PAGE_SIZE: Final = 250


async def find_by_prefix(
    store: ApprovalStore, prefix: str, may_see: Callable[[ApprovalRequest], bool] = lambda _: True
) -> ApprovalRequest | None:
    """Return the only visible request whose id begins so, or None if there is none.

    Raises MalformedMessage if there are several.
    """
    # Ids are sorted, so those with this beginning come right after it.
    following = await store.page((), prefix, _PAGE_SIZE)
    alike = [ask for ask in following if ask.id.startswith(prefix)]
    found = [ask for ask in alike if may_see(ask)]
    if len(found) > 1:
        raise MalformedMessage(
            f"several approval requests begin with {prefix!r:.40}; give more of the id",
            INVALID_PARAMS,
        )
    return found[0] if found else None


async def find_by_id_or_prefix(store: ApprovalStore, name: str) -> ApprovalRequest | None:
    """Return the request with this id or beginning. Raises as `find_by_prefix` does."""
    if not MIN_ID_PREFIX <= len(name) <= ID_LENGTH:
        return None
    return await (store.get(name) if len(name) == ID_LENGTH else find_by_prefix(store, name))


type Named = Callable[[str, str], Actor | None]
"""Returns the actor of a known principal, and of its key if one is given; or None."""

HISTORY_PERIOD: Final = timedelta(days=1)
_HISTORY_CACHE_TIME: Final = timedelta(seconds=5)
_MAX_HISTORY_PAGES: Final = 20
_DECIDED_STATES: Final = (ApprovalState.APPROVED, ApprovalState.CONSUMED, ApprovalState.DENIED)


class ApprovalInbox:
    """The approval requests as the API, the page and the notifications show them."""

    def __init__(
        self,
        approvals: ApprovalService,
        links: ApprovalLinks,
        find_actor: Named = lambda _party, _key: None,
        audit_log: AuditLog | None = None,
    ) -> None:
        self.approvals = approvals
        self.links = links
        self.find_actor = find_actor
        self._audit_log = audit_log
        self._history: Seen = {}
        self._history_read_at: datetime | None = None

    async def find(self, actor: Actor, id_prefix: str) -> ApprovalRequest:
        """Return a visible request by a prefix of its id. Raises MalformedMessage."""
        id_prefix = id_prefix.lower()
        if len(id_prefix) >= ID_LENGTH:
            return await self.approvals.get(actor, id_prefix)
        if len(id_prefix) < MIN_ID_PREFIX:
            raise MalformedMessage(
                f"give at least {MIN_ID_PREFIX} characters of the request id", INVALID_PARAMS
            )
        asks, may_see = self.approvals.store, self.approvals.may_see
        found = await find_by_prefix(asks, id_prefix, lambda ask: may_see(ask, actor))
        if found is None:
            raise MalformedMessage(NOT_FOUND_TEXT, NOTHING_HERE)
        return found

    async def view(self, actor: Actor, request: ApprovalRequest) -> ApprovalView:
        return (await self.views(actor, [request]))[0]

    async def views(self, actor: Actor, requests: Iterable[ApprovalRequest]) -> list[ApprovalView]:
        """Return requests as JSON objects, in the given order, with what this actor may do."""
        found = list(requests)
        if any(ask.is_open for ask in found):
            await self.similar_approvals()
        return [self._view(actor, ask) for ask in found]

    def _view(self, actor: Actor, request: ApprovalRequest) -> ApprovalView:
        reason = self.approvals.refusal_reason(request, actor) if request.is_open else None
        return {
            **presentation.request_fields(request),
            "similar": (
                presentation.describe_similar(request, self._history) if request.is_open else ""
            )
            or None,
            "may_answer": request.is_open and reason is None,
            "confirmation_word": presentation.confirmation_word(request),
            "refusal_reason": reason,
            "approvers": self.approvals.describe_approvers(request, actor)
            if request.is_open
            else None,
        }

    async def describe_similar(self, request: ApprovalRequest) -> str:
        return presentation.describe_similar(request, await self.similar_approvals())

    def clear_history_cache(self, request: ApprovalRequest) -> None:
        """Read the past decisions again for the next view, because one was added."""
        if not request.is_open:
            self._history_read_at = None

    async def similar_approvals(self) -> Seen:
        """Return what was decided in the last day, read again after a decision."""
        now = self.approvals.clock()
        if self._history_read_at is None or now - self._history_read_at > _HISTORY_CACHE_TIME:
            self._history_read_at = now
            self._history = presentation.collect_similar(await self._read_decided(now))
        return self._history

    async def _read_decided(self, now: datetime) -> Sequence[ApprovalRequest]:
        found: list[ApprovalRequest] = []
        after = new_request_id(now - HISTORY_PERIOD, b"")
        for _ in range(_MAX_HISTORY_PAGES):
            page = await self.approvals.store.page(_DECIDED_STATES, after, _PAGE_SIZE)
            found += page
            if len(page) < _PAGE_SIZE:
                break
            after = page[-1].id
        return found

    # Links.

    def page_url(self, request: ApprovalRequest, party: str = "") -> str:
        """Return the page of a request; with `party`, a link that answers in its name."""
        page = f"{self.approvals.public_url}{PAGE_PATH}{request.id}"
        if not party:
            return page
        # The operator of a gateway in local mode comes from its own machine, also by a link.
        credential = LOCAL_OPERATOR.credential if party == LOCAL_OPERATOR.party else ""
        link = ApprovalLink(request.id, party, request.expires_at, credential)
        return f"{page}?t={self.links.seal(link)}"

    def sign_in_url(self, request: ApprovalRequest, party: str = "") -> str:
        """Return the page of a request; with `party`, for this principal only, which signs in."""
        page = f"{self.approvals.public_url}{PAGE_PATH}{request.id}"
        if not party:
            return page
        link = ApprovalLink(request.id, party, request.expires_at)
        return f"{page}?for={self.links.seal_sign_in(link)}"

    def link_problem(self, request: ApprovalRequest, party: str) -> str | None:
        """Return why a principal cannot have a link to answer with, or None if it can."""
        actor = self.find_actor(party, "")
        if actor is None:
            return f"{party} is unknown or disabled; see `comity principals`"
        if actor.kind is not PrincipalKind.PERSON:
            return f"{party} is not a person; only people can answer"
        return self.approvals.refusal_reason(request, actor)

    async def create_link(self, by: Actor, request: ApprovalRequest, party: str) -> str:
        """Return a link to answer with, and record who made it. Raises MalformedMessage."""
        reason = (
            "it is no longer open" if not request.is_open else self.link_problem(request, party)
        )
        if reason is not None:
            raise MalformedMessage(f"no link can be made: {reason:.300}", ACCESS_DENIED)
        if self._audit_log is not None:
            said = {"what": "approval link", "approval": request.id, "principal": party}
            event = self._audit_log.event(
                AuditType.KEY_ISSUED, by, trace=request.trace, details=said
            )
            await self._audit_log.write(event)
        return self.page_url(request, party)
