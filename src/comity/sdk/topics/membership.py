"""The state of a participant in its topic, and its own open proposals."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, overload

from comity.errors import (
    ACCESS_DENIED,
    DECLINED,
    EXHAUSTED,
    INVALID_REQUEST,
    RATE_LIMITED,
    TIMEOUT,
    Fault,
    Unavailable,
)
from comity.mcp.jsonrpc import Id
from comity.sdk.functions import ParticipantResponder
from comity.sdk.topics.envelopes import ParticipantEnvelopeReader, PendingMemberRequest
from comity.sdk.topics.events import (
    DisconnectionEvent,
    EnvelopeRefusal,
    Event,
    MemberMisbehaviour,
    Notice,
    ParticipantEventStream,
    Payload,
    Presence,
    Proposal,
    ReconnectionEvent,
    Rejection,
    Request,
    Response,
    Welcome,
)
from comity.sdk.topics.state import EnvelopeSummary, MemberProposalTracker
from comity.topics import rules
from comity.topics.envelope import PROPOSAL, Envelope, parse_kind
from comity.topics.rules import TopicCapabilities, TopicViolation

type Withdraw = Callable[[str, str], Awaitable[str]]
"""Withdraws the proposal of an id, with a reason."""


class ProposedHandle:
    """A proposal of this participant. Await it for the result, or `response()` for the answer.

    Afterwards `proposal.fulfilled_by` is the member that fulfilled it.
    """

    def __init__(
        self,
        made: rules.TrackedProposal,
        look: Callable[[str], rules.TrackedProposal | None],
        withdraw: Withdraw,
    ) -> None:
        self._made = made
        self._look = look
        self._withdraw = withdraw
        self.answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        # A caller need not await a proposal: asyncio must not log its exception then.
        self.answer.add_done_callback(lambda done: done.cancelled() or done.exception())

    def __await__(self) -> Generator[object, None, Payload]:
        return self.result().__await__()

    @property
    def id(self) -> str:
        return self._made.id

    @property
    def proposal(self) -> rules.TrackedProposal:
        """The proposal with its current status."""
        return self._look(self.id) or self._made

    async def result(self, within: timedelta | None = None) -> Payload:
        """The result. Raises Unavailable for an error, a rejection or no answer in time."""
        return result_of(await self.response(within))

    async def response(self, within: timedelta | None = None) -> Response:
        """The answer to the fulfilment. Waits until the proposal expires, or for `within`."""
        left = self._made.expires_at - datetime.now(UTC) if within is None else within
        try:
            async with asyncio.timeout(max(left.total_seconds(), 0)):
                return await asyncio.shield(self.answer)
        except TimeoutError:
            state = self.proposal.status
            reason = f"the proposal is {state} and has no answer; propose it again, or ask a member"
            raise Unavailable(reason, TIMEOUT) from None

    async def withdraw(self, reason: str = "") -> None:
        """Withdraw the proposal; callers that await it get Unavailable.

        Raises PermissionError if the topic does not have that kind. (D-46)
        """
        await self._withdraw(self.id, reason)
        if not self.answer.done():
            self.answer.set_exception(Unavailable("it was withdrawn", DECLINED))


def result_of(response: Response) -> Payload:
    """The result of a response; raises Unavailable with the message of an error."""
    if response.error is not None:
        code, message = response.error.get("code"), str(response.error.get("message"))
        raise Unavailable(f"{response.sender} answered: {message[:1_000]} ({code})")
    assert response.result is not None
    return response.result


log = logging.getLogger(__name__)

MOST_WAITED_FOR: Final = 1_000
MOST_OTHERS: Final = 100_000
_FAULT_OF: Final[dict[str, Fault]] = {
    TopicViolation.CAPABILITY: ACCESS_DENIED,
    TopicViolation.RATE: RATE_LIMITED,
}


def utc_now() -> datetime:
    return datetime.now(UTC)


def _ignore(_: bytes) -> None:
    """Ignore a frame."""


class ParticipantMembership:
    """The state of one participant, which its connection updates."""

    def __init__(self, lifetime: timedelta, *, has_later_kinds: bool) -> None:
        self.following = MemberProposalTracker(utc_now, lifetime)
        self.reading = ParticipantEnvelopeReader(self.following, has_later_kinds=has_later_kinds)
        self.may = TopicCapabilities(())
        self.others: dict[str, tuple[str, ...]] = {}
        self.serving: ParticipantResponder | None = None
        self.overhear: Callable[[bytes], None] = _ignore
        self._streams: set[ParticipantEventStream[Any]] = set()
        self._answers: dict[str, asyncio.Future[Response]] = {}
        self._proposed: dict[str, ProposedHandle] = {}
        self._over: Unavailable | None = None

    @property
    def me(self) -> str:
        return self.reading.me

    def greeted(self, frame: bytes) -> bool:
        self.overhear(frame)
        self.reading.me = ""
        events = self.reading.read(frame)
        if not any(isinstance(event, Welcome) for event in events):
            return False
        self._take(events)
        return True

    def heard(self, frame: bytes) -> None:
        self.overhear(frame)
        self._take(self.reading.read(frame))

    def cut(self, because: str) -> None:
        self.tell(DisconnectionEvent(because))

    def back(self, attempts: int) -> None:
        self.tell(ReconnectionEvent(attempts))

    def over(self, why: Unavailable) -> None:
        """End for good: fail all waiting answers and end all streams."""
        self._over = why
        waiting = [*self._answers.values(), *(each.answer for each in self._proposed.values())]
        for answer in waiting:
            if not answer.done():
                answer.set_exception(Unavailable(str(why), why.fault))
        for stream in tuple(self._streams):
            stream.end()

    @overload
    def events(self) -> ParticipantEventStream[Event]: ...
    @overload
    def events[E](self, *wanted: type[E]) -> ParticipantEventStream[E]: ...
    def events(self, *wanted: type[Any]) -> ParticipantEventStream[Any]:
        stream: ParticipantEventStream[Any] = ParticipantEventStream(
            wanted or (object,), self._streams.discard
        )
        if self._over is not None:
            stream.end()
        else:
            self._streams.add(stream)
        return stream

    def tell(self, event: Event) -> None:
        for stream in tuple(self._streams):
            stream.give(event)

    def expect(self, envelope: Envelope, rpc_id: Id) -> asyncio.Future[Response]:
        """A future for the answer to a request; call `forget` afterwards."""
        if len(self._answers) >= MOST_WAITED_FOR:
            reason = f"{MOST_WAITED_FOR} requests wait for answers already; wait for some"
            raise Unavailable(reason, EXHAUSTED)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._answers[envelope.id] = answer
        step = EnvelopeSummary(
            envelope.sender, envelope.to, parse_kind(envelope.kind), envelope.correlation_id
        )
        self.reading.asked[envelope.id] = PendingMemberRequest(step, rpc_id)
        return answer

    def forget(self, id: str) -> None:
        answer = self._answers.pop(id, None)
        self.reading.asked.pop(id, None)
        if answer is not None and not answer.cancel() and not answer.cancelled():
            # Retrieve the exception, so that asyncio does not log it.
            answer.exception()

    def propose(
        self, envelope: Envelope, method: str, params: Payload, withdraw: Withdraw
    ) -> ProposedHandle:
        """Track a proposal of this participant before it is sent."""
        for id in [id for id, each in self._proposed.items() if each.answer.done()]:
            del self._proposed[id]
        if len(self._proposed) >= MOST_WAITED_FOR:
            self._proposed.pop(next(iter(self._proposed))).answer.cancel()
        made = self.following.begin(Proposal(envelope, method, params))
        handle = ProposedHandle(made, self.following.get, withdraw)
        self._proposed[made.id] = handle
        return handle

    def proposer_of(self, request: Request) -> str:
        """The proposer of the proposal that a request fulfils; empty if unknown. (D-39)"""
        step = self.reading.seen.get(request.correlation_id)
        return "" if step is None or step.kind.family != PROPOSAL else step.sender

    def _take(self, events: list[Event]) -> None:
        for event in events:
            self._act(event)
            self.tell(event)

    def _act(self, event: Event) -> None:
        match event:
            case Welcome():
                self.reading.me = event.id
                self.may = TopicCapabilities(event.capabilities)
                self.others = dict(event.others)
            case Presence():
                self._met(event)
            case Request():
                self._asked(event)
            case Response():
                self._answered(event)
            case EnvelopeRefusal() if event.error != TopicViolation.UNREACHABLE:
                # An unreachable one was given to those of the same node, who may answer.
                fault = _FAULT_OF.get(event.error, INVALID_REQUEST)
                self._fail(event.id, f"the gateway refused it: {event.message}", fault)
            case Rejection() | Notice():
                self._declined(event)
            case MemberMisbehaviour():
                _complain(event)
            case _:
                pass

    def _declined(self, event: Rejection | Notice) -> None:
        """Fail the answer of a proposal that a member or the gateway declined."""
        if isinstance(event, Rejection):
            reason = f"{event.sender} said no: {event.reason[:1_000] or 'no reason given'}"
            self._fail(event.proposal.id, reason, DECLINED)
        elif event.is_over:
            self._fail(event.about, f"nothing came of it: {event.message}", DECLINED)

    def _met(self, event: Presence) -> None:
        if not event.has_come:
            self.others.pop(event.id, None)
        elif event.id != self.me and len(self.others) < MOST_OTHERS:
            self.others[event.id] = event.capabilities

    def _asked(self, request: Request) -> None:
        if self.serving is None or self.me not in request.to:
            return
        step = self.reading.seen.get(request.correlation_id)
        # A request that fulfils no proposal may be repeated.
        is_proposal = step is None or step.kind.family == PROPOSAL
        self.serving.take(request, request.correlation_id if is_proposal else "")

    def _answered(self, response: Response) -> None:
        if response.is_orphan:
            return
        answer = self._answers.get(response.correlation_id)
        if answer is not None and not answer.done():
            answer.set_result(response)
        handle = self._proposed.get(self.following.proposal_of(response.correlation_id))
        if handle is not None and not handle.answer.done():
            handle.answer.set_result(response)

    def _fail(self, id: str, reason: str, fault: Fault) -> None:
        handle = self._proposed.get(id)
        for answer in (self._answers.get(id), None if handle is None else handle.answer):
            if answer is not None and not answer.done():
                answer.set_exception(Unavailable(reason, fault))


def _complain(event: MemberMisbehaviour) -> None:
    """Log the 1st, 2nd, 4th, 8th drop of a sender and so on, without the content."""
    if event.count & (event.count - 1) == 0:
        log.warning("dropped from %r (%d times): %s", event.sender, event.count, event.because)
