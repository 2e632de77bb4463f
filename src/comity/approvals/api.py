"""Operator API for approval requests, their event stream and suggested grants."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final, Literal

from msgspec import Meta, field

from comity.approvals.model import ApprovalDecision, ApprovalKind, ApprovalRequest, ApprovalState
from comity.approvals.service import ApprovalInbox
from comity.approvals.suggestion_rules import (
    UNASKED_OUTCOMES,
    CallOutcome,
    DryRun,
    WithheldSuggestion,
)
from comity.approvals.suggestions import SuggestionList, SuggestionPreview, SuggestionService
from comity.errors import EXHAUSTED, INVALID_PARAMS, MalformedMessage, Unavailable
from comity.http import asgi
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission, View
from comity.http.api_input import EmptyQuery, RequestBody, RequestQuery, ShortText
from comity.http.asgi import ACTOR, ASKS, STREAM_HEADERS, HttpEndpoint, Receive, Scope, Send
from comity.mcp import jsonrpc
from comity.mcp.actors import ADMIN_WRITE, CALL, Actor
from comity.mcp.framing import encode_comment, encode_event
from comity.mcp.protocol import public_name
from comity.policy.administration import GrantAdmin
from comity.policy.api import grant_view
from comity.policy.grants import Effect, Grant
from comity.policy.shares import PrincipalShares

OPEN_STATES: Final = (ApprovalState.PENDING, ApprovalState.DEFERRED)
PAGE_SIZE: Final = 250


class ApprovalPageQuery(RequestQuery, frozen=True):
    """Which approval requests to list: `state` is `all`, or states with commas between."""

    state: str = ""
    cursor: str = ""

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


class ApprovalAnswerBody(RequestBody, frozen=True):
    """The answer to an approval request."""

    verdict: ApprovalDecision
    reason: Annotated[str, Meta(max_length=2000)] = ""
    content: dict[str, object] = field(default_factory=dict[str, object])
    remember: bool = False


class ApprovalLinkBody(RequestBody, frozen=True):
    """The principal that gets the link. The default is the sender."""

    principal: ShortText | None = None


class AsksApi:
    """Routes of the operator API that list and answer approval requests."""

    def __init__(self, inbox: ApprovalInbox, administration: GrantAdmin) -> None:
        self._inbox = inbox
        self._approvals = inbox.approvals
        self._administration = administration

    @property
    def routes(self) -> ApiRoutes:
        own, one = Permission.OWN_RECORDS, f"{ASKS}/{{id}}"
        return (
            ApiRoute("GET", ASKS, own, self._list_requests, ApprovalPageQuery),
            ApiRoute("GET", one, own, self._show_request, EmptyQuery),
            ApiRoute("POST", f"{one}/answer", own, self._answer, ApprovalAnswerBody),
            ApiRoute("POST", f"{one}/link", own, self._make_link, ApprovalLinkBody),
        )

    async def _list_requests(self, request: ApiRequest[ApprovalPageQuery]) -> View:
        """Return one page. An empty page may have a next one: the actor may not see all."""
        actor, wanted = request.actor, request.input
        found, following = await self._approvals.page(
            actor, wanted.states, wanted.cursor, PAGE_SIZE
        )
        page: dict[str, object] = {"approvals": await self._inbox.views(actor, found)}
        return {**page, "next": following} if following else page

    async def _show_request(self, request: ApiRequest[EmptyQuery]) -> View:
        found = await self._inbox.find(request.actor, request.path["id"])
        return await self._inbox.view(request.actor, found)

    async def _answer(self, request: ApiRequest[ApprovalAnswerBody]) -> View:
        actor, id, said = request.actor, request.path["id"], request.input
        wanted = None
        if said.remember:
            wanted = self._standing_grant(actor, await self._approvals.get(actor, id), said.verdict)
        answered = await self._approvals.answer(actor, id, said.verdict, said.reason, said.content)
        view = await self._inbox.view(actor, answered)
        if wanted is None or answered.state is not ApprovalState.APPROVED:
            return {**view, "remembered": None}
        return {**view, "remembered": grant_view(await self._administration.put(actor, wanted))}

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

    async def _make_link(self, request: ApiRequest[ApprovalLinkBody]) -> View:
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
CHECK_INTERVAL_SECONDS: Final = 1.0
CHECKS_PER_KEEP_ALIVE: Final = 15
SEND_TIMEOUT_SECONDS: Final = 30.0
RETRY_MS: Final = 1000

type Recognise = Callable[[Scope, dict[bytes, bytes]], Awaitable[Actor]]
"""Returns the actor of a request. Raises MalformedMessage or Unavailable without access."""


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


class ApprovalStreamWriter:
    """Writes one event stream. It gives up a reader that leaves the stream full for too long."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def begin(self) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS}
        await self._send_with_timeout(head)
        await self.send_body(b"retry: %d\n\n" % RETRY_MS)

    async def send_event(self, name: str, content: object) -> None:
        await self.send_body(encode_event(bytes(jsonrpc.to_raw(content)), event=name))

    async def send_body(self, data: bytes) -> None:
        await self._send_with_timeout(
            {"type": "http.response.body", "body": data, "more_body": True}
        )

    async def end(self) -> None:
        await self._send_with_timeout({"type": "http.response.body", "body": b""})

    async def _send_with_timeout(self, message: asgi.Message) -> None:
        async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
            await self._send(message)


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
        reader = ApprovalStreamBuffer(self._max_readers)
        self._readers.add(reader)
        gone = asyncio.ensure_future(_wait_for_disconnect(receive))
        gone.add_done_callback(lambda _: reader.end())
        try:
            await self._send_changes(reader, scope, headers, ApprovalStreamWriter(send))
        except TimeoutError:
            log.warning("A reader of the approval stream stopped reading. Its stream is closed.")
        finally:
            self._readers.discard(reader)
            gone.cancel()

    async def _send_changes(
        self,
        reader: ApprovalStreamBuffer,
        scope: Scope,
        headers: dict[bytes, bytes],
        writer: ApprovalStreamWriter,
    ) -> None:
        assert self.authenticate is not None
        await writer.begin()
        await self._send_open_requests(scope[ACTOR], writer)
        quiet = 0
        while not reader.is_over:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_INTERVAL_SECONDS):
                    await reader.changed.wait()
            try:
                actor = await self.authenticate(scope, headers)
            except (MalformedMessage, Unavailable) as refused:
                await writer.send_event("end", {"reason": str(refused)})
                break
            lost, asks = reader.take_changes()
            if lost:
                await writer.send_event("lost", {"read": ASKS})
            await self._send_requests(actor, asks, writer)
            quiet = 0 if asks or lost else quiet + 1
            if quiet >= CHECKS_PER_KEEP_ALIVE:
                quiet = 0
                await writer.send_body(encode_comment("still here"))
        await writer.end()

    async def _send_open_requests(self, actor: Actor, writer: ApprovalStreamWriter) -> None:
        after, count = "", 0
        while True:
            asks, after = await self._approvals.page(actor, after=after)
            count += await self._send_requests(actor, asks, writer)
            if not after:
                break
        await writer.send_event("current", {"open": count})

    async def _send_requests(
        self, actor: Actor, requests: Sequence[ApprovalRequest], writer: ApprovalStreamWriter
    ) -> int:
        seen = [ask for ask in requests if self._approvals.may_see(ask, actor)]
        for view in await self._inbox.views(actor, seen) if seen else ():
            await writer.send_event("approval", view)
        return len(seen)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class SuggestionDecisionBody(RequestBody, frozen=True):
    """The decision about a suggested grant."""

    id: ShortText
    decision: Literal["accept", "dismiss"]
    reason: ShortText = ""


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

    async def _list_suggestions(self, request: ApiRequest[EmptyQuery]) -> View:
        return _list_view(await self._suggestion_service.list_suggestions(request.actor))

    async def _decide(self, request: ApiRequest[SuggestionDecisionBody]) -> View:
        actor, said = request.actor, request.input
        view = {"id": said.id, "decision": said.decision}
        if said.decision == "accept":
            grant = await self._suggestion_service.accept(actor, said.id, said.reason)
            return {**view, "grant": grant_view(grant)}
        dismissed = await self._suggestion_service.dismiss(actor, said.id, said.reason)
        return {**view, "suggested_again_at": 2 * dismissed.decisions}


def _list_view(found: SuggestionList) -> View:
    return {
        "suggestions": [_preview_view(each) for each in found.previews],
        "withheld": [_withheld_view(each) for each in found.withheld],
    }


def _preview_view(preview: SuggestionPreview) -> View:
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
        "dry_run": {**_dry_run_view(preview.dry_run), "audit_complete": preview.is_complete},
    }


def _dry_run_view(found: DryRun) -> dict[str, object]:
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
    }


def _withheld_view(withheld: WithheldSuggestion) -> View:
    return {
        "subject": withheld.subject,
        "server": withheld.server,
        "tool": withheld.tool,
        "name": public_name(withheld.server, withheld.tool),
        "approved": withheld.decisions,
        "reason": withheld.why,
    }
