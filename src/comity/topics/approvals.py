"""Approval requests in topics: members read and answer them there."""

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from comity.approvals import presentation
from comity.approvals.kinds import RULES_BY_KIND
from comity.approvals.model import META_KEY, ApprovalDecision, ApprovalRequest, ApprovalState
from comity.approvals.service import OPEN_STATES, ApprovalService
from comity.errors import INVALID_PARAMS, METHOD_NOT_FOUND, MalformedMessage, Unavailable
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import GATEWAY
from comity.mcp.jsonrpc import UNSET, Frame
from comity.toolkit.background import BackgroundTasks
from comity.topics import envelope as topic_requests
from comity.topics import envelope as wire
from comity.topics.envelope import PROPOSAL, REQUEST, Envelope, EnvelopeHeader
from comity.topics.gateway_members import INBOX, GatewayMember, ManagedTopic, grant_actor
from comity.topics.rules import TopicRefusal, TopicViolation
from comity.topics.topic import TopicMember, TopicMessage

ANSWER_TOOL: Final = "answer_approval"
LIST_TOOL: Final = "list_approvals"
MAX_REASON_LENGTH: Final = 1000
_SHOWN_FIELDS: Final = (
    "id",
    "kind",
    "requester",
    "server",
    "tool",
    "summary",
    "risk",
    "about",
    "quorum",
)
_DECISIONS: Final = (ApprovalDecision.ACCEPT, ApprovalDecision.DECLINE)
_TOOLS: Final[tuple[Mapping[str, object], ...]] = (
    {
        "name": LIST_TOOL,
        "description": "List the pending approval requests that you can see.",
        "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": ANSWER_TOOL,
        "description": "Answer an approval request. Only people can, and not their own.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "approval": {
                    "type": "string",
                    "description": "The full id of the approval request.",
                },
                "verdict": {"enum": list(_DECISIONS)},
                "reason": {"type": "string", "maxLength": MAX_REASON_LENGTH},
            },
            "required": ["approval", "verdict"],
            "additionalProperties": False,
        },
    },
)
_INITIALIZE_RESULT: Final[Mapping[str, object]] = {
    "protocolVersion": protocol.LATEST_HANDSHAKE,
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "comity-inbox", "version": "1"},
}

type ManagedTopicSource = Callable[[], Iterable[ManagedTopic]]


class TopicApprovals:
    """Publishes approval requests in topics, and answers requests about them."""

    def __init__(self, approvals: ApprovalService, managed_topics: ManagedTopicSource) -> None:
        self._approvals = approvals
        self._managed_topics = managed_topics
        self._background_tasks = BackgroundTasks("approvals in topics")

    # Publication

    def on_approval_changed(self, approval_request: ApprovalRequest) -> None:
        """Publish a new or changed approval request in every topic that shows them."""
        if not RULES_BY_KIND[approval_request.kind].is_yes_or_no or (
            approval_request.is_open and approval_request.answers
        ):
            return
        for place in self._managed_topics():
            if place.shows_approvals and place.inbox is not None:
                self._publish(place, place.inbox, approval_request)

    def _publish(
        self, managed_topic: ManagedTopic, inbox: GatewayMember, approval_request: ApprovalRequest
    ) -> None:
        put = _id(managed_topic, approval_request, "")
        if approval_request.is_open:
            arguments = {"approval": approval_request.id, "verdict": ApprovalDecision.ACCEPT}
            params = {
                "name": ANSWER_TOOL,
                "arguments": arguments,
                "_meta": {META_KEY: self._describe(approval_request)},
            }
            kind = f"{PROPOSAL}:{protocol.CALL_TOOL}:{ANSWER_TOOL}"
            payload = {"method": protocol.CALL_TOOL, "params": params}
            self._deliver(
                managed_topic, managed_topic.new_header(id=put), (inbox.party, kind), payload
            )
        elif approval_request.state is not ApprovalState.CONSUMED:
            told = {
                "notice": "approval_ended",
                "approval": approval_request.id,
                "state": approval_request.state,
            }
            words = presentation.describe_state(approval_request)[:1000]
            heading = managed_topic.new_header(
                (), put, _id(managed_topic, approval_request, approval_request.state)
            )
            self._deliver(
                managed_topic, heading, (GATEWAY, wire.NOTICE), {**told, "message": words}
            )

    def _deliver(
        self,
        managed_topic: ManagedTopic,
        heading: EnvelopeHeader,
        said: tuple[str, str],
        payload: Mapping[str, Any],
    ) -> None:
        """Deliver to the members on this node.

        Every node does the same, and each skips repetitions.
        """
        envelope = wire.build_envelope(heading, *said, payload)
        data = wire.encode_envelope(envelope)
        fits = len(data) <= managed_topic.room.settings.limits.envelope_bytes
        if fits and heading.id not in managed_topic.room.trail:
            managed_topic.room.deliver(TopicMessage(data, envelope))

    def _describe(self, approval_request: ApprovalRequest) -> dict[str, object]:
        fields = presentation.request_fields(approval_request)
        told = {name: fields[name] for name in _SHOWN_FIELDS}
        url = f"{self._approvals.public_url}/approvals/{approval_request.id}"
        return {**told, "expires_at": approval_request.expires_at.isoformat(), "url": url}

    # Requests of members

    def on_message(
        self, managed_topic: ManagedTopic, member: TopicMember, message: TopicMessage
    ) -> None:
        envelope = message.envelope
        is_asked = envelope.kind.startswith(f"{REQUEST}:") and INBOX in envelope.to
        if not is_asked or managed_topic.inbox is None or member.is_built_in:
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
        elif frame.id is not UNSET:
            self._background_tasks.start(
                self._answer(managed_topic, managed_topic.inbox, member, envelope, frame)
            )

    async def wait_until_idle(self) -> None:
        await self._background_tasks.finish()

    def stop(self) -> None:
        self._background_tasks.cancel()

    async def _answer(
        self,
        managed_topic: ManagedTopic,
        inbox: GatewayMember,
        member: TopicMember,
        envelope: Envelope,
        frame: Frame,
    ) -> None:
        said: dict[str, Any] = {"jsonrpc": "2.0", "id": frame.id}
        try:
            said["result"] = await self._result(member, frame)
        except (MalformedMessage, Unavailable) as error:
            said["error"] = jsonrpc.make_error(None, error.fault, str(error)[:1000]).error
        kind = topic_requests.response_kind(envelope.kind)
        heading = managed_topic.new_header((member.party,), envelope.id)
        try:
            inbox.send(heading, kind, said)
        except MalformedMessage as error:
            failure = jsonrpc.make_error(None, error.fault, f"the answer does not fit: {error}")
            inbox.send(heading, kind, {"jsonrpc": "2.0", "id": frame.id, "error": failure.error})

    async def _result(self, member: TopicMember, frame: Frame) -> Mapping[str, object]:
        values = topic_requests.decode_params(frame)
        if frame.method == protocol.INITIALIZE:
            return _INITIALIZE_RESULT
        if frame.method == protocol.PING:
            return {}
        if frame.method == protocol.LIST_TOOLS:
            return {"tools": _TOOLS}
        if frame.method != protocol.CALL_TOOL:
            raise MalformedMessage("approvals has only tools", METHOD_NOT_FOUND)
        name, arguments = values.get("name"), values.get("arguments")
        if name == LIST_TOOL:
            return await self._list(member)
        if name != ANSWER_TOOL or not isinstance(arguments, dict):
            raise MalformedMessage(f"the tools are {LIST_TOOL} and {ANSWER_TOOL}", INVALID_PARAMS)
        try:
            return await self._take_answer(member, arguments)  # pyright: ignore[reportUnknownArgumentType]  # JSON: any values
        except MalformedMessage as error:
            return _text(str(error), is_error=True)

    async def _list(self, member: TopicMember) -> Mapping[str, object]:
        found, _ = await self._approvals.page(grant_actor(member.actor), OPEN_STATES)
        shown = [self._describe(ask) for ask in presentation.sort_by_urgency(found)[:50]]
        lines = [f"{ask['id']}: {ask['summary']}" for ask in shown]
        told = "\n".join(lines) or "Nothing waits for an answer that you may see."
        return {**_text(told), "structuredContent": {"approvals": shown}}

    async def _take_answer(
        self, member: TopicMember, fields: Mapping[str, object]
    ) -> Mapping[str, object]:
        id, verdict, reason = (fields.get(name, "") for name in ("approval", "verdict", "reason"))
        if not isinstance(id, str) or not isinstance(reason, str) or verdict not in _DECISIONS:
            raise MalformedMessage(
                "arguments must be {approval: id, verdict: accept or decline, reason: text}",
                INVALID_PARAMS,
            )
        actor = grant_actor(member.actor)
        ask = await self._approvals.get(actor, id)
        if not RULES_BY_KIND[ask.kind].is_yes_or_no:
            raise MalformedMessage(
                "answer this request elsewhere: `comity approvals`", INVALID_PARAMS
            )
        if ask.asker == member.party:
            # With one local person behind several members, each member counts as a principal of its
            # own.
            actor = member.actor
        answered = await self._approvals.answer(
            actor, id, ApprovalDecision(str(verdict)), reason[:MAX_REASON_LENGTH]
        )
        return _text(presentation.describe_state(answered))


def _id(managed_topic: ManagedTopic, approval_request: ApprovalRequest, state: str) -> str:
    """Return the envelope id of an approval request in a topic, which is the same on every node."""
    return str(
        uuid.uuid5(
            uuid.NAMESPACE_URL, f"comity:{managed_topic.topic}:{approval_request.id}:{state}"
        )
    )


def _text(text: str, *, is_error: bool = False) -> dict[str, object]:
    found: dict[str, object] = {"content": [{"type": "text", "text": text}]}
    return {**found, "isError": True} if is_error else found
