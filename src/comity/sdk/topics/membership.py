"""What a participant knows of its topic, and its own open proposals."""

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
"""How a proposal of this id is withdrawn, for this reason."""


class ProposedHandle:
    """What we proposed. Await it for the result; `response()` gives the whole answer.

    Whoever fulfilled it is in `proposal.fulfilled_by` afterwards.
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
        # Nobody has to await a proposal; then what came of it is nobody's problem.
        self.answer.add_done_callback(lambda done: done.cancelled() or done.exception())

    def __await__(self) -> Generator[object, None, Payload]:
        return self.result().__await__()

    @property
    def id(self) -> str:
        return self._made.id

    @property
    def proposal(self) -> rules.TrackedProposal:
        """As it stands now."""
        return self._look(self.id) or self._made

    async def result(self, within: timedelta | None = None) -> Payload:
        """What was answered. Raises Unavailable for an error, a rejection or no answer in time."""
        return result_of(await self.response(within))

    async def response(self, within: timedelta | None = None) -> Response:
        """The answer to whoever fulfilled it; waits for as long as the proposal lives, or less."""
        left = self._made.expires_at - datetime.now(UTC) if within is None else within
        try:
            async with asyncio.timeout(max(left.total_seconds(), 0)):
                return await asyncio.shield(self.answer)
        except TimeoutError:
            state = self.proposal.status
            reason = f"the proposal is {state} and has no answer; propose again, or ask somebody"
            raise Unavailable(reason, TIMEOUT) from None

    async def withdraw(self, reason: str = "") -> None:
        """Say that it is wanted no more, where the topic has that kind; who awaits it is told.

        Raises PermissionError where it has not. (D-46)
        """
        await self._withdraw(self.id, reason)
        if not self.answer.done():
            self.answer.set_exception(Unavailable("it was withdrawn", DECLINED))


def result_of(response: Response) -> Payload:
    """The result; raises Unavailable with what the answerer said where it is an error."""
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
    """What nobody wanted to overhear."""


class ParticipantMembership:
    """The state of one participant. It is what a line is read into."""

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
        """There will be no connection any more."""
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
        """The answer to a request that is about to be sent; `forget` it afterwards."""
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
            # Where nobody waited to the end, what came is nobody's problem.
            answer.exception()

    def propose(
        self, envelope: Envelope, method: str, params: Payload, withdraw: Withdraw
    ) -> ProposedHandle:
        """Follow a proposal of ours that is about to be sent."""
        for id in [id for id, each in self._proposed.items() if each.answer.done()]:
            del self._proposed[id]
        if len(self._proposed) >= MOST_WAITED_FOR:
            self._proposed.pop(next(iter(self._proposed))).answer.cancel()
        made = self.following.begin(Proposal(envelope, method, params))
        handle = ProposedHandle(made, self.following.get, withdraw)
        self._proposed[made.id] = handle
        return handle

    def proposer_of(self, request: Request) -> str:
        """Who proposed what a request fulfils, if that was seen here. (D-39)"""
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
        """A member has said no, or the gateway says that nothing will come of it."""
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
        # What refers to something that we know to be no proposal may be asked for again.
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
    """To the log: the first time, and ever more rarely. What it said is not repeated there."""
    if event.count & (event.count - 1) == 0:
        log.warning("dropped from %r (%d times): %s", event.sender, event.count, event.because)
