"""A member of a topic: join, chat, request, propose, fulfil and answer. (MCPx §8.2)"""

import asyncio
import inspect
import itertools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, cast, overload

from comity.errors import (
    ACCESS_DENIED,
    INVALID_REQUEST,
    MalformedMessage,
    Misconfigured,
    Unavailable,
)
from comity.mcp.jsonrpc import Id
from comity.sdk.functions import (
    ParticipantBackend,
    ParticipantResponder,
    ToolFunction,
    ToolFunctions,
)
from comity.sdk.topics import envelopes
from comity.sdk.topics.connection import ParticipantAddress, ParticipantConnection, Token
from comity.sdk.topics.envelopes import EnvelopeDraft, Recipients
from comity.sdk.topics.events import (
    Event,
    MemberMessage,
    MemberMisbehaviour,
    MissedEnvelopes,
    ParticipantEventStream,
    Payload,
    Proposal,
    Request,
    Response,
)
from comity.sdk.topics.membership import ParticipantMembership, ProposedHandle, result_of
from comity.toolkit.resilience import RetrySchedule
from comity.topics import envelope as wire
from comity.topics.envelope import Envelope
from comity.topics.rules import LIFETIME, DeliveryMode, ProposalEvent
from comity.topics.rules import TrackedProposal as Followed

log = logging.getLogger(__name__)

SEND_WITHIN: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class ParticipantOptions:
    """The options of a participant.

    `patience` is how long it tries to join while the gateway cannot be reached. `answer_within` is
    how long a request waits. `has_later_kinds` is for topics with `mcp/reject` and `mcp/withdraw`.
    `alias` names the participant at a gateway in local mode, which needs no credentials.
    `overhear` is called with each received frame before it is checked.
    """

    patience: timedelta = timedelta(seconds=30)
    answer_within: timedelta = timedelta(seconds=60)
    lifetime: timedelta = LIFETIME
    has_later_kinds: bool = False
    alias: str = ""
    overhear: Callable[[bytes], None] | None = None
    backoff: RetrySchedule = field(default_factory=RetrySchedule)


_NOTHING: Final[Mapping[str, ToolFunction]] = {}
_DEFAULT: Final = ParticipantOptions()


class Participant:
    """A participant in one topic. `join_topic` makes it."""

    def __init__(
        self,
        topic: str,
        line: ParticipantConnection,
        membership: ParticipantMembership,
        options: ParticipantOptions,
    ) -> None:
        self.topic = topic
        # The events before `join_topic` returned: the history of the topic, if it has one.
        self.already: tuple[Event, ...] = ()
        self._line = line
        self._membership = membership
        self._options = options
        self._rpc_ids = itertools.count(1)
        self._callbacks: set[asyncio.Task[None]] = set()

    @property
    def id(self) -> str:
        """The id of this participant, from the gateway."""
        return self._membership.me

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The kinds that this participant may send, from the last welcome."""
        return self._membership.may.listed

    @property
    def others(self) -> Mapping[str, tuple[str, ...]]:
        """The other members, each with its capabilities."""
        return dict(self._membership.others)

    @property
    def proposals(self) -> tuple[Followed, ...]:
        """The open proposals of all members, the oldest first."""
        return self._membership.following.open()

    @property
    def reputation(self) -> Mapping[str, int]:
        """The number of dropped envelopes of each member."""
        return self._membership.reading.reputation

    @property
    def ended(self) -> Unavailable | None:
        """The reason why the membership ended for good; None while it lasts."""
        return self._line.ended

    @property
    def is_connected(self) -> bool:
        return self._line.is_open and self._line.ended is None

    def may_send(self, kind: str) -> bool:
        later = self._options.has_later_kinds
        return envelopes.why_not(kind, self._membership.may, has_later_kinds=later) is None

    def proposal(self, id: str) -> Followed | None:
        """A proposal that was seen here, with its current status."""
        return self._membership.following.get(id)

    @overload
    def events(self) -> ParticipantEventStream[Event]: ...
    @overload
    def events[E](self, *wanted: type[E]) -> ParticipantEventStream[E]: ...
    def events(self, *wanted: type[Any]) -> ParticipantEventStream[Any]:
        """Future events, of all types or of the given ones; iterate over the stream.

        It ends with the membership. A slow reader gets a `MissedEnvelopes` for dropped events.
        """
        return self._membership.events(*wanted)

    def __aiter__(self) -> ParticipantEventStream[Event]:
        return self.events()

    def on[E](
        self, wanted: type[E], callback: Callable[[E], Awaitable[object] | object]
    ) -> Callable[[], None]:
        """Call a function for each future event of a type, in order; call the result to stop.

        A slow callback delays no other callback.
        """
        stream = self.events(wanted)
        task = asyncio.create_task(_call_back(stream, wanted, callback))
        self._callbacks.add(task)
        task.add_done_callback(self._callbacks.discard)
        return stream.close

    async def chat(
        self, text: str, *, to: Recipients = None, form: str = "plain", reply_to: str = ""
    ) -> str:
        """Send a chat, to all or to `to`, and return its id; `form` may be "markdown"."""
        return await self.say(envelopes.draft_chat(text, to, form, reply_to))

    async def notify(self, method: str, params: Payload | None = None, *, to: Recipients) -> str:
        """Send a notification of MCP, which has no answer."""
        return await self.say(envelopes.draft_request(method, params or {}, None, to))

    async def request(
        self,
        method: str,
        params: Payload | None = None,
        *,
        to: Recipients = None,
        within: timedelta | None = None,
        or_propose: bool = True,
    ) -> Payload:
        """Send a request, or propose it if this participant may not send it; return the result.

        Raises PermissionError if it may do neither, or may only propose and `or_propose` is false.
        Raises TimeoutError without an answer, and Unavailable for an error, a refusal or a proposal
        without fulfilment.
        """
        said = params or {}
        if not or_propose or self.may_send(envelopes.kind_of(wire.REQUEST, method, said)):
            try:
                return result_of(await self.ask(method, said, to=to, within=within))
            except Unavailable as refused:
                # The capabilities can have changed in the meantime.
                if not or_propose or refused.fault is not ACCESS_DENIED:
                    raise
        proposed = await self.propose(method, said, to=to)
        return await proposed.result(within)

    async def ask(
        self,
        method: str,
        params: Payload | None = None,
        *,
        to: Recipients = None,
        within: timedelta | None = None,
    ) -> Response:
        """Send a request without a fallback to a proposal; return the response."""
        rpc_id = next(self._rpc_ids)
        envelope, data = self._sealed(envelopes.draft_request(method, params or {}, rpc_id, to))
        return await self._answered(envelope, data, rpc_id, within)

    async def propose(
        self, method: str, params: Payload | None = None, *, to: Recipients = None
    ) -> ProposedHandle:
        """Propose a request to members that may send it; await the handle for the result."""
        said = params or {}
        envelope, data = self._sealed(envelopes.draft_proposal(method, said, to))
        handle = self._membership.propose(envelope, method, said, self._withdraw)
        await self._line.send(data, SEND_WITHIN)
        return handle

    async def fulfil(
        self,
        proposal: Proposal | Followed | str,
        *,
        to: Recipients = None,
        within: timedelta | None = None,
    ) -> Response:
        """Fulfil a proposal: send its request to `to`, or to its target; return the response."""
        known = self._open_proposal(proposal)
        target = envelopes.recipients_of(to) or known.target
        if not target or (known.target and not set(target) <= set(known.target)):
            whom = " or ".join(known.target) or "a member"
            raise MalformedMessage(f"name with `to` who fulfils it: {whom:.200}", INVALID_REQUEST)
        rpc_id = next(self._rpc_ids)
        params = cast("Payload", known.params)
        draft = envelopes.draft_request(known.method, params, rpc_id, target, known.id)
        envelope, data = self._sealed(draft)
        told = self._membership.following.fulfilled_by(
            Request(envelope, known.method, params, rpc_id)
        )
        if told is not None:
            self._membership.tell(told)
        return await self._answered(envelope, data, rpc_id, within)

    async def reject(self, proposal: Proposal | Followed | str, reason: str = "") -> str:
        """Reject a proposal, if the topic has that kind. (D-46)"""
        known = self._open_proposal(proposal)
        said = await self.say(
            EnvelopeDraft(wire.REJECT, {"reason": reason}, (known.proposer,), known.id)
        )
        self._membership.following.ended(known.id, ProposalEvent.REJECTION, self.id)
        return said

    async def respond(self, request: Request, body: Mapping[str, object]) -> str:
        """Answer a request; `body` has its "result" or its "error".

        The response goes to the requester, and to the proposer if the request fulfils a proposal.
        """
        return await self.say(
            envelopes.draft_response(request, body, self._membership.proposer_of(request))
        )

    async def report(self, event: MemberMisbehaviour, *, to: Recipients = None) -> str:
        """Report a dropped envelope in a chat."""
        who, what = event.sender or "an unknown sender", event.kind or "an envelope"
        times = "" if event.count == 1 else f" ({event.count} times by now)"
        return await self.chat(f"Dropped {what} from {who}: {event.because}{times}.", to=to)

    async def say(self, draft: EnvelopeDraft) -> str:
        """Send an envelope of any allowed kind; return its id."""
        envelope, data = self._sealed(draft)
        await self._line.send(data, SEND_WITHIN)
        return envelope.id

    async def close_callbacks(self) -> None:
        for task in (running := list(self._callbacks)):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _withdraw(self, id: str, reason: str) -> str:
        said = await self.say(EnvelopeDraft(wire.WITHDRAW, {"reason": reason}, (), id))
        self._membership.following.ended(id, ProposalEvent.WITHDRAWAL, self.id)
        return said

    def _sealed(self, draft: EnvelopeDraft) -> tuple[Envelope, bytes]:
        later = self._options.has_later_kinds
        problem = envelopes.why_not(draft.kind, self._membership.may, has_later_kinds=later)
        if problem is not None:
            raise problem
        envelope, data = envelopes.seal_envelope(draft, self.id)
        self._membership.reading.said(envelope)
        return envelope, data

    async def _answered(
        self, envelope: Envelope, data: bytes, rpc_id: Id, timeout: timedelta | None
    ) -> Response:
        patience = timeout or self._options.answer_within
        answer = self._membership.expect(envelope, rpc_id)
        try:
            async with asyncio.timeout(patience.total_seconds()):
                await self._line.send(data, SEND_WITHIN)
                return await answer
        except TimeoutError:
            whom = ", ".join(envelope.to) or "anybody"
            reason = f"no answer to {envelope.kind} from {whom:.200} within {patience}"
            raise TimeoutError(reason) from None
        finally:
            self._membership.forget(envelope.id)

    def _open_proposal(self, proposal: MemberMessage | Followed | str) -> Followed:
        id = proposal if isinstance(proposal, str) else proposal.id
        known = self.proposal(id)
        if known is None:
            raise MalformedMessage(f"no proposal {id!r:.80} was seen here", INVALID_REQUEST)
        if not known.is_open:
            by = f" by {known.fulfilled_by}" if known.fulfilled_by else ""
            raise Unavailable(f"the proposal {id:.80} is {known.status}{by}")
        return known


@asynccontextmanager
async def join_topic(
    url: str,
    topic: str,
    *,
    token: Token = "",
    mode: DeliveryMode = DeliveryMode.ALL,
    serves: object = _NOTHING,
    options: ParticipantOptions = _DEFAULT,
) -> AsyncGenerator[Participant]:
    """Join a topic for as long as the block lasts.

    `serves` answers the requests to this participant: a `Server` or `MCPServer` of the package
    mcp, or a mapping of tool names to async functions. By default only pings get a result. With
    None the program answers requests itself, with `respond`.

    Raises Misconfigured for an invalid address. Raises Unavailable if the gateway refuses, or
    cannot be reached for as long as `options.patience`.
    """
    address = ParticipantAddress(url, topic, token, mode, options.alias)
    membership = ParticipantMembership(options.lifetime, has_later_kinds=options.has_later_kinds)
    line = ParticipantConnection(address, membership, options.backoff)
    me = Participant(topic, line, membership, options)
    async with AsyncExitStack() as leaving:
        answers = await _behind(serves, leaving)
        if answers is not None:
            membership.serving = ParticipantResponder(answers, me.respond)
            leaving.push_async_callback(membership.serving.close)
        leaving.push_async_callback(me.close_callbacks)
        if options.overhear is not None:
            membership.overhear = options.overhear
        early = membership.events()
        await leaving.enter_async_context(line)
        await line.opened(options.patience)
        me.already = tuple(early.taken())
        early.close()
        yield me


async def _behind(serves: object, leaving: AsyncExitStack) -> ParticipantBackend | None:
    """Return the backend that answers requests, or None."""
    if serves is None:
        return None
    if isinstance(serves, Mapping):
        return ToolFunctions("participant", cast("Mapping[str, ToolFunction]", serves))
    try:
        # Imported here because only participants with such an object need the mcp package.
        from comity.sdk.topics.mcp_server import McpServer
    except ModuleNotFoundError as missing:
        raise Misconfigured(
            f"{missing}: to serve an object of the mcp package, install comity[sdk]"
        ) from None
    return await leaving.enter_async_context(McpServer(serves))


async def _call_back[E](
    stream: ParticipantEventStream[E],
    expected_type: type[E],
    callback: Callable[[E], Awaitable[object] | object],
) -> None:
    async for event in stream:
        if isinstance(event, MissedEnvelopes) and not isinstance(event, expected_type):
            log.warning("a callback is too slow: %d events were lost to it", event.count)
            continue
        try:
            came = callback(event)
            if inspect.isawaitable(came):
                await came
        except Exception:
            log.exception("a callback for %s failed", expected_type.__name__)
