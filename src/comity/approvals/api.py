"""Operator API for approval requests, their event stream and suggested grants."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Final, Literal, NotRequired, TypedDict

from msgspec import Meta, field

from comity.approvals.briefing import ApprovalBriefing, BriefingView
from comity.approvals.model import (
    ApprovalDecision,
    ApprovalFilter,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
)
from comity.approvals.presentation import ApprovalView, sort_by_urgency
from comity.approvals.service import ApprovalInbox
from comity.approvals.suggestion_rules import (
    UNASKED_OUTCOMES,
    CallOutcome,
    DryRun,
    WithheldSuggestion,
)
from comity.approvals.suggestions import SuggestionList, SuggestionPreview, SuggestionService
from comity.errors import ACCESS_DENIED, EXHAUSTED, INVALID_PARAMS, MalformedMessage, Unavailable
from comity.http import asgi
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import EmptyQuery, RequestBody, RequestQuery, ShortText, ZonedTime
from comity.http.asgi import ACTOR, ASKS, HttpEndpoint, Receive, Scope, Send
from comity.http.event_stream import (
    EventStreamWriter,
    Recognise,
    ended_by_disconnect,
    send_until_over,
)
from comity.mcp.actors import ADMIN_WRITE, CALL, Actor
from comity.mcp.protocol import public_name
from comity.policy.api import GrantView, grant_view
from comity.policy.conditions import parse_condition
from comity.policy.grants import Effect, Grant
from comity.policy.shares import PrincipalShares
from comity.storage.values import to_optional_utc

OPEN_STATES: Final = (ApprovalState.PENDING, ApprovalState.DEFERRED)
PAGE_SIZE: Final = 250


class ApprovalPageQuery(RequestQuery, frozen=True):
    """Which approval requests to list: `state` is `all`, or states with commas between."""

    state: str = ""
    kind: ApprovalKind | None = None
    principal: str = ""
    server: str = ""
    tool: str = ""
    text: Annotated[str, Meta(max_length=200)] = ""
    # `urgency` puts the riskiest of a page first; the pages are the same as with `oldest`.
    order: Literal["urgency", "oldest", "newest"] = "urgency"
    limit: Annotated[int, Meta(ge=1, le=PAGE_SIZE)] = PAGE_SIZE
    cursor: str = ""

    def to_filter(self) -> ApprovalFilter:
        return ApprovalFilter(
            self.states,
            self.kind,
            self.principal,
            self.server,
            self.tool,
            self.text,
            self.order == "newest",
            self.cursor,
        )

    @property
    def states(self) -> tuple[ApprovalState, ...]:
        """The states to list: the open ones by default, and an empty tuple for all."""
        if self.state in ("", "all"):
            return () if self.state else OPEN_STATES
        try:
            return tuple(ApprovalState(each.strip()) for each in self.state.split(","))
        except ValueError:
            known = ", ".join(ApprovalState)
            raise MalformedMessage(
                f"state must be all, or some of: {known}", INVALID_PARAMS
            ) from None


class ApprovalRuleBody(RequestBody, frozen=True):
    """The rule to make with an approval. Without `where`, it covers these arguments only."""

    where: dict[str, object] | None = None
    expires_at: ZonedTime | None = None


class ApprovalAnswerBody(RequestBody, frozen=True):
    """The answer to an approval request."""

    verdict: ApprovalDecision
    reason: Annotated[str, Meta(max_length=2000)] = ""
    content: dict[str, object] = field(default_factory=dict[str, object])
    remember: bool = False
    rule: ApprovalRuleBody | None = None


class ApprovalLinkBody(RequestBody, frozen=True):
    """The principal that gets the link. The default is the sender."""

    principal: ShortText | None = None


class ApprovalPage(TypedDict):
    """One page of approval requests. `next` is the cursor of the next page.

    `total` counts all that match, for a reader who may see every request.
    """

    approvals: list[ApprovalView]
    total: NotRequired[int]
    next: NotRequired[str]


class AnsweredApproval(ApprovalView):
    """A request after an answer. `remembered` is the grant that the answer made."""

    remembered: GrantView | None


class ApprovalLinkView(TypedDict):
    """A link with which a principal answers a request."""

    id: str
    principal: str
    url: str
    expires_at: datetime


class AsksApi:
    """Routes of the operator API that list and answer approval requests."""

    def __init__(self, briefing: ApprovalBriefing) -> None:
        self._briefing = briefing
        self._inbox = briefing.inbox
        self._approvals = briefing.inbox.approvals
        self._administration = briefing.administration

    @property
    def routes(self) -> ApiRoutes:
        own, one = Permission.OWN_RECORDS, f"{ASKS}/{{id}}"
        return (
            ApiRoute("GET", ASKS, own, self._list_requests, ApprovalPageQuery),
            ApiRoute("GET", one, own, self._show_request, EmptyQuery),
            ApiRoute("POST", f"{one}/answer", own, self._answer, ApprovalAnswerBody),
            ApiRoute("POST", f"{one}/link", own, self._make_link, ApprovalLinkBody),
        )

    async def _list_requests(self, request: ApiRequest[ApprovalPageQuery]) -> ApprovalPage:
        """Return one page. An empty page may have a next one: the actor may not see all."""
        actor, wanted = request.actor, request.input
        criteria = wanted.to_filter()
        found, following = await self._approvals.find(actor, criteria, wanted.limit)
        listed = sort_by_urgency(found) if wanted.order == "urgency" else found
        page: ApprovalPage = {"approvals": await self._inbox.views(actor, listed)}
        if self._approvals.may_see_all(actor):
            page["total"] = await self._approvals.store.count_matches(criteria)
        return {**page, "next": following} if following else page

    async def _show_request(self, request: ApiRequest[EmptyQuery]) -> BriefingView:
        """Return a request with all that an approver needs."""
        found = await self._inbox.find(request.actor, request.path["id"])
        return await self._briefing.view(request.actor, found)

    async def _answer(self, request: ApiRequest[ApprovalAnswerBody]) -> AnsweredApproval:
        actor, id, said = request.actor, request.path["id"], request.input
        wanted = None
        if said.rule is not None:
            wanted = await self._rule_grant(actor, id, said)
        elif said.remember:
            wanted = self._standing_grant(actor, await self._approvals.get(actor, id), said.verdict)
        answered = await self._approvals.answer(actor, id, said.verdict, said.reason, said.content)
        view = await self._inbox.view(actor, answered)
        if wanted is None or answered.state is not ApprovalState.APPROVED:
            return {**view, "remembered": None}
        return {**view, "remembered": grant_view(await self._administration.put(actor, wanted))}

    async def _rule_grant(self, actor: Actor, id: str, said: ApprovalAnswerBody) -> Grant:
        """Return the grant of an approval with a rule. Raises before the answer is kept."""
        assert said.rule is not None
        request = await self._approvals.get(actor, id)
        if not request.is_open:
            # That it is over explains more than that no rule can be made from it.
            raise self._approvals.ended_error(request)
        if said.verdict is not ApprovalDecision.ACCEPT:
            raise MalformedMessage("`rule` needs the approval of a call", INVALID_PARAMS)
        if (because := self._briefing.rule_refusal(actor, request)) is not None:
            raise MalformedMessage(f"no rule can be made: {because:.300}", ACCESS_DENIED)
        where = said.rule.where
        condition = None if where is None else parse_condition(where)
        if condition is not None and not condition.covers(request.about.get("arguments")):
            raise MalformedMessage("the rule does not cover this call", INVALID_PARAMS)
        why = f"approved by {actor.party} with a rule, in approval request {request.id}"
        return replace(
            self._briefing.rule_of(request, where),
            justification=why,
            expires_at=to_optional_utc(said.rule.expires_at),
        )

    def _standing_grant(
        self, actor: Actor, request: ApprovalRequest, verdict: ApprovalDecision
    ) -> Grant:
        """Return the grant that the answer "always" would create.

        Raises MalformedMessage before the answer is kept if the actor may not create this grant.
        """
        # A request with options is a question of a server during a call, and not a call.
        if (
            verdict is not ApprovalDecision.ACCEPT
            or request.kind is not ApprovalKind.CONFIRM
            or request.options
        ):
            raise MalformedMessage("`remember` needs the approval of a call", INVALID_PARAMS)
        target = f"{request.server}/{request.tool}"
        self._administration.require_grant(actor, ADMIN_WRITE, target)
        why = f"approved by {actor.party} for all calls, in approval request {request.id}"
        return Grant(request.asker, CALL, target, Effect.ALLOW, justification=why)

    async def _make_link(self, request: ApiRequest[ApprovalLinkBody]) -> ApprovalLinkView:
        actor = request.actor
        self._administration.require_grant(actor, ADMIN_WRITE, "*")
        party = actor.party if request.input.principal is None else request.input.principal
        ask = await self._inbox.find(actor, request.path["id"])
        url = await self._inbox.create_link(actor, ask, party)
        return {"id": ask.id, "principal": party, "url": url, "expires_at": ask.expires_at}


log = logging.getLogger(__name__)

STREAM_PATH: Final = f"{ASKS}/stream"
MAX_BUFFERED_REQUESTS: Final = 256
MAX_READERS: Final = 1000
MAX_READERS_PER_PRINCIPAL: Final = 100


class ApprovalStreamBuffer:
    """The unsent changes for one reader: the latest version of each request, up to a limit."""

    def __init__(self, max_requests: int = MAX_BUFFERED_REQUESTS) -> None:
        self.is_lost = False
        self.is_over = False
        self.changed = asyncio.Event()
        self._max_requests = max_requests
        self._changed_requests: dict[str, ApprovalRequest] = {}

    def add_change(self, request: ApprovalRequest) -> None:
        if (
            request.id not in self._changed_requests
            and len(self._changed_requests) >= self._max_requests
        ):
            self.mark_lost()
        else:
            self._changed_requests[request.id] = request
            self.changed.set()

    def mark_lost(self) -> None:
        """Note that more requests changed than the buffer holds."""
        self._changed_requests.clear()
        self.is_lost = True
        self.changed.set()

    def end(self) -> None:
        self.is_over = True
        self.changed.set()

    def take_changes(self) -> tuple[bool, list[ApprovalRequest]]:
        """Return whether changes were lost, and the requests that changed since the last call."""
        self.changed.clear()
        lost, self.is_lost = self.is_lost, False
        asks, self._changed_requests = list(self._changed_requests.values()), {}
        return lost, asks


class AsksStream:
    """The endpoint of the event stream of approval requests, with all its readers."""

    def __init__(
        self,
        inbox: ApprovalInbox,
        max_readers: int = MAX_BUFFERED_REQUESTS,
        *,
        authenticate: Recognise | None = None,
    ) -> None:
        # Without it, the endpoint refuses every reader.
        self.authenticate = authenticate
        self._inbox = inbox
        self._approvals = inbox.approvals
        self._max_readers = max_readers
        self._readers: set[ApprovalStreamBuffer] = set()
        self._shares = PrincipalShares("approval streams", "", MAX_READERS_PER_PRINCIPAL)
        self._is_over = False

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def endpoints(self) -> dict[str, HttpEndpoint]:
        return {STREAM_PATH: self.serve_stream}

    def on_request_changed(self, request: ApprovalRequest) -> None:
        """Tell the readers about a request that is new or has changed, on any node."""
        for reader in self._readers:
            reader.add_change(request)

    def on_id_changed(self, id: str) -> None:
        """Tell the readers about a change by id. An empty id means that any may have changed."""
        if not id:
            for reader in self._readers:
                reader.mark_lost()

    def end(self) -> None:
        """End all streams. New readers get an error that asks for a later retry."""
        self._is_over = True
        for reader in self._readers:
            reader.end()

    async def serve_stream(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        if scope["method"] != "GET":
            await asgi.send_empty(send, 405, ((b"allow", b"GET"),))
            return
        if self.authenticate is None or self._is_over or len(self._readers) >= MAX_READERS:
            raise Unavailable("too many readers of the approval stream; try again later", EXHAUSTED)
        with self._shares.hold(scope[ACTOR].party):
            await self._serve_reader(scope, headers, receive, send)

    async def _serve_reader(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        recognise = self.authenticate
        assert recognise is not None
        reader, writer = ApprovalStreamBuffer(self._max_readers), EventStreamWriter(send)

        async def send_changes(actor: Actor) -> bool:
            lost, asks = reader.take_changes()
            if lost:
                await writer.send_event({"read": ASKS}, "lost")
            await self._send_requests(actor, asks, writer)
            return lost or bool(asks)

        self._readers.add(reader)
        try:
            with ended_by_disconnect(receive, reader):
                await writer.begin()
                await self._send_open_requests(scope[ACTOR], writer)
                await send_until_over(
                    reader, writer, lambda: recognise(scope, headers), send_changes
                )
        except TimeoutError:
            log.warning("A reader of the approval stream stopped reading. Its stream is closed.")
        finally:
            self._readers.discard(reader)

    async def _send_open_requests(self, actor: Actor, writer: EventStreamWriter) -> None:
        after, count = "", 0
        while True:
            asks, after = await self._approvals.page(actor, after=after)
            count += await self._send_requests(actor, asks, writer)
            if not after:
                break
        await writer.send_event({"open": count}, "current")

    async def _send_requests(
        self, actor: Actor, requests: Sequence[ApprovalRequest], writer: EventStreamWriter
    ) -> int:
        seen = [ask for ask in requests if self._approvals.may_see(ask, actor)]
        for view in await self._inbox.views(actor, sort_by_urgency(seen)) if seen else ():
            await writer.send_event(view, "approval")
        return len(seen)


class SuggestionDecisionBody(RequestBody, frozen=True):
    """The decision about a suggested grant."""

    id: ShortText
    decision: Literal["accept", "dismiss"]
    reason: ShortText = ""


class SuggestionEvidence(TypedDict):
    """The decisions from which a grant is suggested."""

    approved: int
    people: Sequence[str]
    first: datetime
    last: datetime


class UncoveredCallView(TypedDict):
    """Calls with the same arguments that a suggested grant does not cover."""

    arguments: object
    became: CallOutcome
    times: int


class DryRunView(TypedDict):
    """The effect that a grant would have had on the calls of the last days."""

    sentence: str
    allowed: int
    never_asked: int
    unanswered: int
    declined: int
    not_covered: int
    not_covered_calls: list[UncoveredCallView]
    audit_complete: bool


class SuggestionView(TypedDict):
    """A suggested grant, with its evidence and its dry run."""

    id: str
    description: str
    subject: str
    server: str
    tool: str
    name: str
    where: Mapping[str, object] | None
    evidence: SuggestionEvidence
    dry_run: DryRunView


class WithheldView(TypedDict):
    """A tool for which no grant is suggested, and the reason."""

    subject: str
    server: str
    tool: str
    name: str
    approved: int
    reason: str


class SuggestionListView(TypedDict):
    """The suggested grants, and the tools for which none is suggested."""

    suggestions: list[SuggestionView]
    withheld: list[WithheldView]


class SuggestionDecisionView(TypedDict):
    """The decision about a suggested grant. An accepted one has its grant."""

    id: str
    decision: Literal["accept", "dismiss"]
    grant: NotRequired[GrantView]
    suggested_again_at: NotRequired[int]


class SuggestionsApi:
    """Routes of the operator API for suggested grants and the decisions about them."""

    def __init__(self, suggestion_service: SuggestionService) -> None:
        self._suggestion_service = suggestion_service

    @property
    def routes(self) -> ApiRoutes:
        read, write = Permission.ADMIN_READ, Permission.ADMIN_WRITE
        return (
            ApiRoute("GET", "/api/grant-suggestions", read, self._list_suggestions, EmptyQuery),
            ApiRoute("POST", "/api/grant-suggestions", write, self._decide, SuggestionDecisionBody),
        )

    async def _list_suggestions(self, request: ApiRequest[EmptyQuery]) -> SuggestionListView:
        return _list_view(await self._suggestion_service.list_suggestions(request.actor))

    async def _decide(self, request: ApiRequest[SuggestionDecisionBody]) -> SuggestionDecisionView:
        actor, said = request.actor, request.input
        view: SuggestionDecisionView = {"id": said.id, "decision": said.decision}
        if said.decision == "accept":
            grant = await self._suggestion_service.accept(actor, said.id, said.reason)
            return {**view, "grant": grant_view(grant)}
        dismissed = await self._suggestion_service.dismiss(actor, said.id, said.reason)
        return {**view, "suggested_again_at": 2 * dismissed.decisions}


def _list_view(found: SuggestionList) -> SuggestionListView:
    return {
        "suggestions": [_preview_view(each) for each in found.previews],
        "withheld": [_withheld_view(each) for each in found.withheld],
    }


def _preview_view(preview: SuggestionPreview) -> SuggestionView:
    one = preview.suggestion
    return {
        "id": one.id,
        "description": one.words,
        "subject": one.subject,
        "server": one.server,
        "tool": one.tool,
        "name": public_name(one.server, one.tool),
        "where": one.where,
        "evidence": {
            "approved": one.decisions,
            "people": one.people,
            "first": one.first,
            "last": one.last,
        },
        "dry_run": _dry_run_view(preview.dry_run, is_complete=preview.is_complete),
    }


def _dry_run_view(found: DryRun, *, is_complete: bool) -> DryRunView:
    return {
        "sentence": found.sentence,
        "allowed": found.count(CallOutcome.APPROVED),
        "never_asked": found.count(*UNASKED_OUTCOMES),
        "unanswered": found.count(CallOutcome.UNANSWERED),
        "declined": found.count(CallOutcome.DECLINED),
        "not_covered": found.left,
        "not_covered_calls": [
            {"arguments": each.arguments, "became": each.became, "times": each.times}
            for each in found.listed
        ],
        "audit_complete": is_complete,
    }


def _withheld_view(withheld: WithheldSuggestion) -> WithheldView:
    return {
        "subject": withheld.subject,
        "server": withheld.server,
        "tool": withheld.tool,
        "name": public_name(withheld.server, withheld.tool),
        "approved": withheld.decisions,
        "reason": withheld.why,
    }
