"""Servers as members of a topic: their calls pass the call pipeline."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from comity.approvals import model
from comity.approvals.client_prompts import LongWaitStream
from comity.approvals.model import ApprovalRequest
from comity.approvals.pending_calls import CallHold
from comity.audit.events import AuditType
from comity.audit.log import AuditLog
from comity.catalog.access import ToolReviewStatus
from comity.errors import (
    EXHAUSTED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UPSTREAM_FAILED,
    Fault,
    MalformedMessage,
    Unavailable,
)
from comity.gateway.pipeline import PipelineApprovals
from comity.mcp import eras, jsonrpc, protocol
from comity.mcp.actors import Actor
from comity.mcp.entries import CatalogEntry
from comity.mcp.jsonrpc import UNSET, Frame, FrameLimits, Id
from comity.mcp.refusals import Refusal
from comity.redaction.redact import Hide, Mark, TopicRedactor
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.toolkit.background import BackgroundTasks
from comity.topics import envelope as topic_requests
from comity.topics.envelope import REQUEST, Envelope
from comity.topics.gateway_members import INBOX, GatewayMember, ManagedTopic, grant_actor
from comity.topics.resource_updates import ResourceFollower, ServerDesk, TopicSubscriptions
from comity.topics.rules import TopicRefusal, TopicViolation, party_of
from comity.topics.topic import TopicMember, TopicMessage


@dataclass(frozen=True, slots=True)
class PriorApproval:
    """An approval that came before the call: the approval request, and the digest of what it
    covers.
    """

    ask: str
    digest: str


class TopicClientStream(LongWaitStream):
    """The client stream of a call from a topic. Its reader forwards the answer to the topic."""

    approval: PriorApproval | None = None


class InTopics:
    """Requests approval of calls, and applies prior approvals to calls that come from topics."""

    def __init__(self, approvals: PipelineApprovals, key: bytes) -> None:
        self._approvals = approvals
        self._key = key

    def hold(
        self,
        call: Call,
        entry: CatalogEntry,
        review: ToolReviewStatus,
        arguments: object,
        frame: Frame,
        reach: Mapping[str, object] | None = None,
    ) -> CallHold | Refusal:
        return self._approvals.hold(call, entry, review, arguments, frame, reach)

    def is_next_round(
        self,
        call: Call,
        entry: CatalogEntry,
        review: ToolReviewStatus,
        arguments: object,
        frame: Frame,
    ) -> bool:
        client_stream = call.client_stream
        if isinstance(client_stream, TopicClientStream) and client_stream.approval is not None:
            found = good_for(entry.server, entry.name, review.digest, arguments, self._key)
            if client_stream.approval.digest == found:
                call.permitted_by = client_stream.approval.ask
                return True
        return self._approvals.is_next_round(call, entry, review, arguments, frame)

    def without_prompt_reply(self, call: Call, frame: Frame) -> Frame:
        return self._approvals.without_prompt_reply(call, frame)


def good_for(server: str, tool: str, definition: str, arguments: object, key: bytes) -> str:
    """Return the digest of an approved call. It does not depend on the caller."""
    return model.call_digest("", server, tool, definition, arguments, key)


MAX_CALLS_PER_MEMBER: Final = 32
"""How many active calls one member may have in one topic."""

MAX_INLINE_BYTES: Final = 64 * 1024
"""The size above which an answer is redacted in a thread, so that it does not block the loop."""

PENDING_NOTICE: Final = "pending"


@dataclass(frozen=True, slots=True)
class ApprovedFulfilment:
    """A fulfilment by the approvals member: its actor, and the approval or grant behind it."""

    actor: Actor
    proposal: str
    ask: str = ""
    grant: str = ""
    approved_by: tuple[str, ...] = ()
    approval: PriorApproval | None = None


class FulfilmentClaims(Protocol):
    """Tracks proposals and their first fulfilments."""

    def take_fulfilment(self, envelope: str) -> ApprovedFulfilment | None:
        """Return the fulfilment that this envelope carries. Each one is returned once."""
        ...

    async def claim(
        self, managed_topic: ManagedTopic, envelope: Envelope, actor: Actor, server: str
    ) -> str:
        """Claim a fulfilment. Returns why it is refused, or an empty text if it is the first."""
        ...

    def release(self, managed_topic: ManagedTopic, envelope: Envelope) -> None:
        """Release a fulfilment that was never sent."""
        ...


class ServerMembers:
    """Answers requests to the servers in topics."""

    def __init__(
        self,
        endpoint_of: Callable[[str], ServerDesk | None],
        claims: FulfilmentClaims,
        hide: tuple[Hide, Mark],
        audit_log: AuditLog | None = None,
    ) -> None:
        self._endpoint_of = endpoint_of
        self._claims = claims
        self._hide = hide
        self._audit_log = audit_log
        self._active_calls: dict[tuple[str, str], dict[str, tuple[Id, Call | None]]] = {}
        self._subscriptions = TopicSubscriptions()
        self._background_tasks = BackgroundTasks("servers in topics")

    def on_message(
        self, managed_topic: ManagedTopic, member: TopicMember, message: TopicMessage
    ) -> None:
        envelope = message.envelope
        if not envelope.kind.startswith(f"{REQUEST}:"):
            return
        named = [name for name in managed_topic.servers if party_of(name) in envelope.to]
        if not named:
            return
        try:
            frame = topic_requests.request_in(envelope)
        except MalformedMessage as error:
            managed_topic.refuse_mismatch(member, envelope, str(error))
            return
        kind = topic_requests.whole_kind(REQUEST, frame)
        if not member.may.allows(kind):
            reason = f"None of your capabilities covers '{kind[:200]}'"
            managed_topic.refuse(member, envelope, TopicRefusal(TopicViolation.CAPABILITY, reason))
        elif frame.id is UNSET:
            self._on_notification(managed_topic, member, frame)
        else:
            for name in named:
                self._start_call(managed_topic, member, TopicCall(name, envelope, frame))

    async def wait_until_idle(self) -> None:
        """Wait until all requests so far are answered."""
        await self._background_tasks.finish()

    def look(self) -> None:
        self._subscriptions.look()

    def stop(self) -> None:
        self._background_tasks.cancel()
        self._subscriptions.stop()

    def _on_notification(
        self, managed_topic: ManagedTopic, member: TopicMember, frame: Frame
    ) -> None:
        """Handle a notification. Only a cancellation has an effect in a topic."""
        if frame.method != protocol.CANCELLED:
            return
        wanted = topic_requests.decode_params(frame).get("requestId")
        for id, call in list(
            self._active_calls.get((managed_topic.topic, member.party), {}).values()
        ):
            if call is not None and type(id) is type(wanted) and id == wanted:
                call.withdraw(None)

    def _start_call(
        self, managed_topic: ManagedTopic, seat: TopicMember, topic_call: "TopicCall"
    ) -> None:
        fulfilment = None
        if seat.is_built_in:
            # In the name of another principal, only an approved fulfilment may run.
            fulfilment = self._claims.take_fulfilment(topic_call.envelope.id)
            if fulfilment is None:
                return
        actor = grant_actor(seat.actor) if fulfilment is None else fulfilment.actor
        underway = self._active_calls.setdefault((managed_topic.topic, seat.party), {})
        member = managed_topic.servers[topic_call.server]
        answering = TopicReply(managed_topic, member, topic_call, seat.party, fulfilment)
        if len(underway) >= MAX_CALLS_PER_MEMBER and not seat.is_built_in:
            answering.fail(
                EXHAUSTED, f"{MAX_CALLS_PER_MEMBER} of your calls are under way here already"
            )
            return
        underway[topic_call.key] = (topic_call.id, None)
        self._background_tasks.start(self._answer(answering, actor, underway))

    async def _answer(
        self,
        answering: "TopicReply",
        actor: Actor,
        underway: dict[str, tuple[Id, Call | None]],
    ) -> None:
        errand = answering.topic_call
        try:
            payload = await self._payload(answering, actor, underway)
            if payload is not None:
                answering.send(payload)
        except (Unavailable, MalformedMessage) as error:
            answering.fail(error.fault, str(error))
        finally:
            underway.pop(errand.key, None)
            if not underway:
                self._active_calls.pop((answering.managed_topic.topic, answering.caller), None)

    async def _payload(
        self,
        answering: "TopicReply",
        actor: Actor,
        underway: dict[str, tuple[Id, Call | None]],
    ) -> Mapping[str, object] | None:
        errand, place = answering.topic_call, answering.managed_topic
        desk = self._endpoint_of(errand.server)
        if desk is None:
            raise Unavailable(f"server {errand.server!r} is no longer connected")
        own = _answer_locally(desk, errand)
        if own is not None:
            return own
        if answering.fulfilment is None:
            reason = await self._claims.claim(place, errand.envelope, actor, errand.server)
            if reason:
                raise MalformedMessage(reason, EXHAUSTED)
        if errand.method in (protocol.SUBSCRIBE, protocol.UNSUBSCRIBE):
            return await self._change_subscription(desk, answering, actor)
        plain = topic_requests.to_modern_request(errand.frame)
        client_stream = answering.open_client_stream(actor)
        call = await desk.handle_modern_request(plain, client_stream, desk.headers_for(plain))
        underway[errand.key] = (errand.id, call)
        self._record_audit(answering, actor, call)
        said = await _read_last_frame(client_stream)
        if not _has_left(call):
            self._claims.release(place, errand.envelope)
        return None if said is None else await self._check_answer(said, place, errand)

    async def _change_subscription(
        self, desk: ServerDesk, answering: "TopicReply", actor: Actor
    ) -> Mapping[str, object]:
        """Begin or end the updates of a resource. They come into the topic, to who asked."""
        errand, follower = answering.topic_call, answering.follower
        if errand.method == protocol.SUBSCRIBE:
            stream = answering.open_client_stream(actor)
            await self._subscriptions.follow(desk, follower, stream)
        else:
            self._subscriptions.unfollow(follower)
        return {"jsonrpc": "2.0", "id": errand.id, "result": {}}

    async def _check_answer(
        self, said: bytes, managed_topic: ManagedTopic, topic_call: "TopicCall"
    ) -> Mapping[str, object] | None:
        """Return the answer for the topic, or None if the server's last message is no answer."""
        most = managed_topic.room.settings.limits.envelope_bytes
        try:
            # An answer that is too large is not redacted. A long one is redacted outside the event
            # loop.
            answer = jsonrpc.decode_frame(said, FrameLimits(most))
            if answer.method is not UNSET:
                return None
            if len(said) > MAX_INLINE_BYTES:
                return await asyncio.to_thread(self._redact_answer, answer, topic_call)
            return self._redact_answer(answer, topic_call)
        except MalformedMessage as error:
            reason = f"the server's answer does not fit into this topic: {error}"
            raise MalformedMessage(reason, UPSTREAM_FAILED) from None

    def _redact_answer(self, answer: Frame, topic_call: "TopicCall") -> Mapping[str, object]:
        """Return the redacted answer, which all members may read."""
        plain = topic_requests.to_common_answer(answer, topic_call.method)
        name, said = ("error", plain.error) if plain.result is UNSET else ("result", plain.result)
        raw = jsonrpc.to_raw(said)
        moderation = TopicRedactor(*self._hide, minds_names=topic_call.method not in eras.LISTS)
        value = moderation.redact(jsonrpc.decode_value(raw))
        return {
            "jsonrpc": "2.0",
            "id": topic_call.id,
            name: value if moderation.was_needed else raw,
        }

    def _record_audit(self, answering: "TopicReply", actor: Actor, call: Call) -> None:
        """Record which message of a topic a call answers."""
        if self._audit_log is None:
            return
        errand, done = answering.topic_call, answering.fulfilment
        details: dict[str, object] = {
            "topic": answering.managed_topic.topic,
            "envelope": errand.envelope.id,
            "from": errand.envelope.sender,
            "method": errand.method,
        }
        if errand.envelope.correlation_id:
            details["correlation_id"] = errand.envelope.correlation_id
        if done is not None:
            told = {
                "approval": done.ask,
                "grant": done.grant,
                "approved_by": list(done.approved_by),
            }
            details |= {name: value for name, value in told.items() if value}
        self._audit_log.record(
            AuditType.TOPIC_CALLED,
            actor,
            server=errand.server,
            tool=topic_requests.context_of(errand.frame)[:200],
            trace=call.ensure_trace_id(),
            details=details,
            if_room=True,
        )


@dataclass(frozen=True, slots=True)
class TopicCall:
    """One request to one server."""

    server: str
    envelope: Envelope
    frame: Frame

    @property
    def key(self) -> str:
        return f"{self.server} {self.envelope.id}"

    @property
    def id(self) -> Id:
        found = self.frame.id
        assert isinstance(found, int | str)
        return found

    @property
    def method(self) -> str:
        return str(self.frame.method)


class TopicReply:
    """Sends the answer to one request into the topic."""

    def __init__(
        self,
        managed_topic: ManagedTopic,
        member: GatewayMember,
        topic_call: TopicCall,
        asker: str,
        fulfilment: ApprovedFulfilment | None,
    ) -> None:
        self.managed_topic = managed_topic
        self.topic_call = topic_call
        self.caller = asker
        self.fulfilment = fulfilment
        self._member = member

    def open_client_stream(self, actor: Actor) -> TopicClientStream:
        client_stream = TopicClientStream()
        client_stream.actor = actor
        client_stream.approval = None if self.fulfilment is None else self.fulfilment.approval
        client_stream.on_held = self._notify_pending
        return client_stream

    def send(self, payload: Mapping[str, Any]) -> None:
        if self.managed_topic.servers.get(self.topic_call.server) is not self._member:
            self.managed_topic.notify(
                "dismounted",
                f"{self._member.party} is no longer in this topic",
                (self.caller,),
                self.topic_call.envelope.id,
            )
            return
        kind = topic_requests.response_kind(self.topic_call.envelope.kind)
        heading = self.managed_topic.new_header(self._readers(), self.topic_call.envelope.id)
        try:
            self._member.send(heading, kind, payload)
        except MalformedMessage as error:
            if "error" in payload:
                raise
            reason = f"the server's answer does not fit into this topic: {error}"
            self._member.send(heading, kind, self._failure(UPSTREAM_FAILED, reason))

    def fail(self, fault: Fault, reason: str) -> None:
        self.send(self._failure(fault, reason))

    def _failure(self, fault: Fault, reason: str) -> Mapping[str, object]:
        failure = jsonrpc.make_error(self.topic_call.id, fault, reason[:1000])
        return {"jsonrpc": "2.0", "id": self.topic_call.id, "error": failure.error}

    @property
    def follower(self) -> ResourceFollower:
        """Return the follower of the resource: the caller, or the member that proposed it."""
        uri = topic_requests.context_of(self.topic_call.frame)
        if not uri:
            raise MalformedMessage("params.uri must be a text", INVALID_PARAMS)
        readers = tuple(each for each in self._readers() if each != INBOX)
        envelope = self.topic_call.envelope.id
        return ResourceFollower(self.managed_topic, self._member, envelope, readers, uri)

    def _readers(self) -> list[str]:
        """The recipients of an answer: the caller, the proposer, and the approvers in the topic."""
        topic, readers = self.managed_topic.room, [self.caller]
        step = topic.trail.get(self.topic_call.envelope.correlation_id)
        if step is not None and topic_requests.is_fulfilment(
            self.topic_call.envelope.kind, step.kind
        ):
            readers.append(step.sender)
        approved_by = () if self.fulfilment is None else self.fulfilment.approved_by
        return [*readers, *(each for each in approved_by if topic.has(each))]

    def _notify_pending(self, approval_request: ApprovalRequest) -> None:
        self.managed_topic.notify(
            PENDING_NOTICE,
            "this call waits for a person's approval; its answer comes when there is one",
            (self.caller,),
            self.topic_call.envelope.id,
            approval=approval_request.id,
            expires_at=approval_request.expires_at.isoformat(),
        )


def _answer_locally(endpoint: ServerDesk, topic_call: TopicCall) -> Mapping[str, object] | None:
    """Answer a method that concerns the connection, since a topic has none.

    None for other methods.
    """
    result: Mapping[str, object] = {}
    if topic_call.method == protocol.INITIALIZE:
        wanted = topic_requests.decode_params(topic_call.frame).get("protocolVersion")
        result = endpoint.initialize_result(wanted if isinstance(wanted, str) else None)
    elif topic_call.method in topic_requests.METHOD_PARAMS:
        return None
    elif topic_call.method != protocol.PING:
        raise MalformedMessage(f"{topic_call.method[:80]} is not asked in topics", METHOD_NOT_FOUND)
    return {"jsonrpc": "2.0", "id": topic_call.id, "result": result}


async def _read_last_frame(client_stream: ClientStream) -> bytes | None:
    """Return the final message of a call. Messages before it are dropped in a topic."""
    said: list[bytes] = []
    while not client_stream.is_final or client_stream.frames:
        await client_stream.wait()
        client_stream.is_nudged = client_stream.is_suspended = False
        said = client_stream.take() or said
    if client_stream.is_overrun:
        raise Unavailable("the server sent too much during the call", UPSTREAM_FAILED)
    return said[-1] if said else None


def _has_left(call: Call) -> bool:
    return call.connection is not None if call.record is None else call.record.was_sent
