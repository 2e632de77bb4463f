"""Proposals in topics: Comity asks for approval and fulfils each proposal once."""

import logging
import secrets
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from comity.approvals import model
from comity.approvals.model import ApprovalDecision, ApprovalDraft, ApprovalKind, ApprovalRequest
from comity.approvals.model import ApprovalState as AskState
from comity.approvals.service import ApprovalService
from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditLog
from comity.catalog.access import ToolReviewSource, ToolReviewStatus
from comity.catalog.catalog import Catalog
from comity.errors import MalformedMessage, Unavailable
from comity.mcp import protocol
from comity.mcp.actors import Actor, kind_of
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.jsonrpc import Frame
from comity.policy.grants import TOPIC_SERVER, Effect, Grant
from comity.policy.snapshot import PolicyEngine
from comity.toolkit.background import BackgroundTasks
from comity.topics import envelope, rules
from comity.topics import envelope as topic_requests
from comity.topics.envelope import PROPOSAL, REJECT, REQUEST, Envelope, parse_kind
from comity.topics.gateway_members import ManagedTopic, grant_actor
from comity.topics.rules import LIFETIME, ProposalEvent, ProposalState, TrackedProposal, party_of
from comity.topics.server_members import PENDING_NOTICE, ApprovedFulfilment, PriorApproval, good_for
from comity.topics.topic import TopicMember, TopicMessage

PROPOSAL_DIGEST: Final = "proposal"
"""The member of an approval request's `about` that identifies the proposal."""

MAX_NAME_LENGTH: Final = 1_000


@dataclass(slots=True)
class PendingProposal:
    """A proposal that this node tracks. `server` is empty if it is addressed to another member."""

    managed_topic: ManagedTopic
    proposal: TrackedProposal
    kind: str
    frame: Frame
    actor: Actor
    server: str
    trace: str
    ask: ApprovalRequest | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.managed_topic.topic, self.proposal.id

    @property
    def method(self) -> str:
        return str(self.frame.method)

    @property
    def context(self) -> str:
        return envelope.context_of(self.frame)

    @property
    def topic_server(self) -> str:
        """The name in the place of a server, for a proposal to another member."""
        return f"{TOPIC_SERVER}{self.managed_topic.topic}"

    @property
    def member_tool(self) -> str:
        """The member and its tool, as grants name them; empty for a server or another method."""
        is_call = not self.server and self.frame.method == protocol.CALL_TOOL and self.context
        return f"{self.proposal.target[0]}/{self.context}" if is_call else ""


@dataclass(frozen=True, slots=True)
class ProposalPolicy:
    """The policy for proposals: grants, tools and redaction."""

    judge: PolicyEngine
    catalog: Catalog
    tools: ToolReviewSource | None
    redact: Callable[[object], object]
    key: bytes
    lifetime: timedelta = LIFETIME
    groups_of: Callable[[str], tuple[str, ...]] = lambda _: ()

    def digest(self, topic: str, proposal: str) -> str:
        return model.call_digest(PROPOSAL_DIGEST, topic, proposal, "", None, self.key)

    def find_tool(self, server: str, frame: Frame) -> CatalogEntry | None:
        if frame.method != protocol.CALL_TOOL:
            return None
        return self.catalog.find_own(server, EntryKind.TOOL, envelope.context_of(frame))

    def review_status(self, pending: PendingProposal) -> ToolReviewStatus | None:
        """Return the review status of the proposed tool, or None for other methods."""
        offer = self.find_tool(pending.server, pending.frame) if pending.server else None
        return None if offer is None or self.tools is None else self.tools.review_of(offer)

    def standing_answer(self, pending: PendingProposal) -> Grant | None:
        """Return the grant that lets the proposal be fulfilled without approval, or None."""
        if pending.member_tool:
            return self.judge.standing_answer(
                pending.actor,
                pending.topic_server,
                pending.member_tool,
                pending.frame.arguments,
                model.MEMBER_TOOL,
            )
        standing = self.review_status(pending)
        if standing is None or standing.refusal is not None or standing.is_always_confirmed:
            return None
        if standing.repeat_approval_reason is not None:
            return None
        return self.judge.standing_answer(
            pending.actor,
            pending.server,
            pending.context,
            pending.frame.arguments,
            standing.digest,
        )

    def caller(self, pending: PendingProposal, approver: Actor | None) -> Actor | None:
        """Return the actor in whose name the proposal is fulfilled. None if neither may do it."""
        named = (pending.actor, *(() if approver is None else (approver,)))
        may = (each for each in named if self._may(each, pending.method, pending))
        return next(may, None)

    def _may(self, actor: Actor, method: str, pending: PendingProposal) -> bool:
        return self.may_call(actor, method, pending.server, pending.context)

    def may_call(self, actor: Actor, method: str, server: str, name: str) -> bool:
        """Whether the actor may call a method.

        A method that concerns no single catalog entry is checked by the server's endpoint.
        """
        if not server or method not in envelope.AUTHORIZED_METHODS:
            return True
        return self.judge.authorize(actor, method, server, name).effect is not Effect.DENY

    def answer_refusal(self, approval_request: ApprovalRequest, actor: Actor) -> str | None:
        """Return why an actor cannot answer the request for a proposal, or None if it can."""
        method = approval_request.about.get("method")
        if PROPOSAL_DIGEST not in approval_request.about or approval_request.server.startswith(
            TOPIC_SERVER
        ):
            return None
        asker = approval_request.asker
        proposer = Actor(asker, kind_of(asker), groups=self.groups_of(asker))
        named = (str(method), approval_request.server, approval_request.tool)
        if any(self.may_call(each, *named) for each in (proposer, actor)):
            return None
        return (
            "neither the proposer nor you have a grant for this, and an approval grants "
            "nothing; see `comity grants explain`"
        )

    def draft(self, pending: PendingProposal) -> ApprovalDraft:
        """Return the approval request for a proposal. Raises MalformedMessage."""
        proposal, standing = pending.proposal, self.review_status(pending)
        topic, context = pending.managed_topic.topic, pending.context
        target = pending.server or proposal.target[0]
        about = {
            **self._describe_request(pending, standing),
            "topic": topic,
            PROPOSAL_DIGEST: proposal.id,
            "proposer": proposal.proposer,
            "method": pending.method,
            "to": target,
        }
        server = pending.server or pending.topic_server
        what = f"{pending.method} {context}".strip()
        message = f"{proposal.proposer} proposes {what} to {target} in topic {topic}"
        return ApprovalDraft(
            kind=ApprovalKind.CONFIRM,
            asker=proposal.proposer,
            server=server,
            tool=(pending.member_tool or context or what)[:MAX_NAME_LENGTH],
            digest=self.digest(topic, proposal.id),
            message=message[:1000],
            about=about,
            quorum=1 if standing is None else standing.quorum,
            trace=pending.trace,
            open_for=self.lifetime,
        )

    def _describe_request(
        self, pending: PendingProposal, review_status: ToolReviewStatus | None
    ) -> Mapping[str, object]:
        """Describe the proposed request for people. A tool call has the same form as any call."""
        offer = self.find_tool(pending.server, pending.frame) if pending.server else None
        if offer is None or review_status is None:
            what = f"{pending.method} {pending.context}".strip()
            params = self.redact(envelope.decode_params(pending.frame))
            described: dict[str, object] = {"tool": what[:MAX_NAME_LENGTH], "params": params}
            if pending.member_tool:
                # People's decisions about these arguments can become a rule, as for a server.
                described["arguments"] = self.redact(pending.frame.arguments)
                described["definition"] = model.MEMBER_TOOL
            return described
        arguments = pending.frame.arguments
        return {
            "tool": offer.key,
            "risk": review_status.risk,
            "definition": review_status.digest,
            "arguments": self.redact(arguments),
            "arguments_digest": model.arguments_digest(arguments, self.key),
        }


log = logging.getLogger(__name__)

MOST: Final = 10_000
"""How many proposals one node tracks. The oldest finished ones are dropped first."""

FULFILS: Final = "dev.comity/fulfils"
_EVENT_OF_STATE: Final = {
    AskState.DENIED: ProposalEvent.REJECTION,
    AskState.CANCELLED: ProposalEvent.REJECTION,
    AskState.EXPIRED: ProposalEvent.TIMEOUT,
    AskState.WITHDRAWN: ProposalEvent.WITHDRAWAL,
}
_STATE_WORDS: Final = {
    AskState.DENIED: "it was denied",
    AskState.CANCELLED: "it was cancelled",
    AskState.EXPIRED: "it was not answered in time",
    AskState.WITHDRAWN: "it was withdrawn",
}

type ActorOf = Callable[[str], Actor]
"""Returns the actor for a principal that has answered an approval request."""


class ProposalService:
    """Tracks all proposals that were made in managed topics on this node."""

    def __init__(
        self,
        approvals: ApprovalService,
        policy: ProposalPolicy,
        actor_of: ActorOf,
        audit_log: AuditLog | None = None,
    ) -> None:
        self._approvals = approvals
        self._policy = policy
        self._actor_of = actor_of
        self._audit = audit_log
        self._pending: dict[tuple[str, str], PendingProposal] = {}
        self._by_approval_id: dict[str, PendingProposal] = {}
        self._fulfilments: dict[str, ApprovedFulfilment] = {}
        self._retries: dict[str, ApprovalRequest] = {}
        self._background_tasks = BackgroundTasks("proposals")

    # Messages of members

    def on_message(
        self, managed_topic: ManagedTopic, member: TopicMember, message: TopicMessage
    ) -> None:
        envelope = message.envelope
        family = envelope.kind.partition(":")[0]
        if member.is_built_in:
            return
        if family == PROPOSAL:
            self._on_proposal(managed_topic, member, envelope)
        elif family == REQUEST:
            self._on_request(managed_topic, envelope)
        else:
            self._on_rejection(managed_topic, member, envelope)

    def _on_proposal(
        self, managed_topic: ManagedTopic, member: TopicMember, envelope: Envelope
    ) -> None:
        concerns_us = managed_topic.shows_approvals or any(
            party_of(name) in envelope.to for name in managed_topic.servers
        )
        try:
            frame = topic_requests.proposed_in(envelope)
        except MalformedMessage as error:
            if concerns_us:
                managed_topic.refuse_mismatch(member, envelope, str(error))
            return
        server, targets = self._target(managed_topic, envelope, frame)
        now = self._approvals.clock()
        proposal = TrackedProposal(
            envelope.id,
            member.party,
            targets,
            str(frame.method),
            None,
            now,
            now + self._policy.lifetime,
        )
        actor, trace = grant_actor(member.actor), secrets.token_hex(16)
        pending = PendingProposal(
            managed_topic, proposal, envelope.kind, frame, actor, server, trace
        )
        self._keep(pending)
        if len(targets) == 1 and concerns_us:
            self._background_tasks.start(self._consider(pending))
        elif concerns_us:
            reason = "name one member in `to` to request approval"
            self._notify_proposer(pending, "unaddressed", reason)

    def _target(
        self, managed_topic: ManagedTopic, envelope: Envelope, frame: Frame
    ) -> tuple[str, tuple[str, ...]]:
        """Return the proposed server, if any, and the recipients of a fulfilment."""
        named = [name for name in managed_topic.servers if party_of(name) in envelope.to]
        if not envelope.to:
            named = [name for name in managed_topic.servers if self._policy.find_tool(name, frame)]
        if len(named) == 1:
            return named[0], (party_of(named[0]),)
        is_one = len(envelope.to) == 1 and envelope.to[0] != envelope.sender
        return "", envelope.to if is_one and not named else ()

    def _keep(self, pending: PendingProposal) -> None:
        if len(self._pending) >= MOST:
            over = (key for key, each in self._pending.items() if not each.proposal.is_open)
            del self._pending[next(over, next(iter(self._pending)))]
        self._pending[pending.key] = pending

    def _on_request(self, managed_topic: ManagedTopic, envelope: Envelope) -> None:
        """Note that a member fulfils a proposal for another member. It then needs no approval."""
        pending = self._pending.get((managed_topic.topic, envelope.correlation_id))
        if pending is None or any(party_of(name) in envelope.to for name in managed_topic.servers):
            return
        if not topic_requests.is_fulfilment(envelope.kind, pending.kind):
            return
        if pending.proposal.status is ProposalState.FULFILLED:
            self._record_repeat(
                managed_topic, envelope, pending.proposal.fulfilled_by, AuditResult.SUCCESS
            )
        elif pending.proposal.is_open:
            self._mark_fulfilled(pending, envelope.sender, envelope.id)
            self._background_tasks.start(self._take_over(pending, envelope.sender))

    async def _take_over(self, pending: PendingProposal, by: str) -> None:
        self._record_fulfilment(pending, by, {})
        if pending.ask is not None:
            try:
                await self._approvals.withdraw(pending.ask, f"{by} fulfils it")
            except Unavailable as error:
                log.info("Approval request %s could not be withdrawn: %s", pending.ask.id, error)

    def _on_rejection(
        self, managed_topic: ManagedTopic, member: TopicMember, envelope: Envelope
    ) -> None:
        """Apply a rejection or withdrawal, which later versions of the document define. (D-46)"""
        pending = self._pending.get((managed_topic.topic, envelope.correlation_id))
        if pending is None or pending.ask is None or not pending.proposal.is_open:
            return
        is_rejected = envelope.kind.startswith(REJECT)
        what = ProposalEvent.REJECTION if is_rejected else ProposalEvent.WITHDRAWAL
        if rules.may_end(pending.proposal, what, member.party):
            self._background_tasks.start(self._end(pending.ask, member, is_rejected=is_rejected))

    async def _end(
        self, approval_request: ApprovalRequest, member: TopicMember, *, is_rejected: bool
    ) -> None:
        try:
            if is_rejected:
                actor, words = grant_actor(member.actor), "rejected in its topic"
                await self._approvals.answer(
                    actor, approval_request.id, ApprovalDecision.DECLINE, words
                )
            else:
                await self._approvals.withdraw(approval_request, "its proposer withdrew it")
        except (Unavailable, MalformedMessage) as error:
            log.info(
                "Approval request %s continues after %s: %s",
                approval_request.id,
                member.party,
                error,
            )

    # Approval

    async def _consider(self, pending: PendingProposal) -> None:
        try:
            grant = self._policy.standing_answer(pending)
            if grant is not None:
                done = ApprovedFulfilment(pending.actor, pending.proposal.id, grant=grant.id)
                self._fulfil(pending, done, str(uuid.uuid4()))
            else:
                await self._request_approval(pending)
        except (Unavailable, MalformedMessage) as error:
            self._notify_proposer(pending, "unasked", f"approval is not possible: {error}")

    async def _request_approval(self, pending: PendingProposal) -> None:
        ask = pending.ask = self._approvals.create(self._policy.draft(pending))
        self._by_approval_id[ask.id] = pending
        try:
            kept = await self._approvals.open(ask)
        except BaseException:
            self._by_approval_id.pop(ask.id, None)
            raise
        if kept.id != ask.id:
            self._by_approval_id.pop(ask.id, None)
            pending.ask = None
            raise MalformedMessage("another pending proposal has this id")
        if pending.proposal.is_open:
            words = "waiting for approval; the answer follows"
            self._notify_proposer(pending, PENDING_NOTICE, words, ask.id)

    def on_approval_changed(self, approval_request: ApprovalRequest) -> None:
        """Apply a new or changed approval request."""
        pending = self._by_approval_id.get(approval_request.id)
        if pending is None or approval_request.is_open:
            return
        if approval_request.state is AskState.APPROVED and pending.proposal.is_open:
            self._background_tasks.start(self._on_approved(pending, approval_request))
        elif approval_request.state in _EVENT_OF_STATE:
            del self._by_approval_id[approval_request.id]
            if pending.proposal.is_open:
                pending.proposal = rules.apply_event(
                    pending.proposal, _EVENT_OF_STATE[approval_request.state]
                )
                last = approval_request.answers[-1] if approval_request.answers else None
                by = f" by {last.by}" if last is not None and last.verdict != "accept" else ""
                why = f": {last.reason}" if by and last is not None and last.reason else ""
                words = f"{_STATE_WORDS[approval_request.state]}{by}{why}; nothing was done"
                self._notify_proposer(
                    pending, str(approval_request.state), words, approval_request.id
                )

    async def _on_approved(
        self, pending: PendingProposal, approval_request: ApprovalRequest
    ) -> None:
        approved_by = tuple(
            each.by for each in approval_request.answers if each.verdict is ApprovalDecision.ACCEPT
        )
        envelope = str(uuid.uuid4())
        before, pending.proposal = pending.proposal, self._fulfilled(pending, envelope)
        try:
            caller = self._policy.caller(pending, self._actor_of(approved_by[-1]))
            used = await self._approvals.consume(approval_request, envelope)
        except Unavailable as error:
            log.info(
                "The answer to approval request %s is not processed yet: %s",
                approval_request.id,
                error,
            )
            pending.proposal = before
            self._retries[approval_request.id] = approval_request
            return
        self._by_approval_id.pop(approval_request.id, None)
        if used is None:
            # Another node has fulfilled the proposal.
            return
        if caller is None:
            self._notify_proposer(
                pending,
                "denied",
                "neither the proposer nor the approver has a grant for it",
                approval_request.id,
            )
            return
        approval = self._approval(pending, approval_request)
        done = ApprovedFulfilment(
            caller, pending.proposal.id, approval_request.id, "", approved_by, approval
        )
        self._fulfil(pending, done, envelope)

    def _approval(
        self, pending: PendingProposal, approval_request: ApprovalRequest
    ) -> PriorApproval | None:
        """Return the approval for a call of the tool as it was then defined, or None for other
        methods.
        """
        definition = approval_request.about.get("definition")
        if not pending.server or not isinstance(definition, str):
            return None
        place = (pending.server, pending.context, definition)
        digest = good_for(*place, pending.frame.arguments, self._policy.key)
        return PriorApproval(approval_request.id, digest)

    # Fulfilment

    def _fulfilled(self, pending: PendingProposal, envelope: str) -> TrackedProposal:
        inbox = pending.managed_topic.inbox
        by = "" if inbox is None else inbox.party
        return rules.apply_event(pending.proposal, ProposalEvent.FULFILMENT, by, envelope)

    def _mark_fulfilled(self, pending: PendingProposal, by: str, envelope: str) -> None:
        pending.proposal = rules.apply_event(
            pending.proposal, ProposalEvent.FULFILMENT, by, envelope
        )

    def _fulfil(self, pending: PendingProposal, done: ApprovedFulfilment, envelope: str) -> None:
        """Send the real request as the approvals member, with the proposer and the approvers."""
        place, inbox = pending.managed_topic, pending.managed_topic.inbox
        if inbox is None or not place.room.member_count:
            self._notify_proposer(
                pending, "withdrawn", "all members left the topic; the call did not run"
            )
            return
        pending.proposal = self._fulfilled(pending, envelope)
        told = {"approval": done.ask, "grant": done.grant, "approved_by": list(done.approved_by)}
        fulfils = {name: value for name, value in told.items() if value}
        fulfils |= {"proposal": done.proposal, "proposer": pending.proposal.proposer}
        params = topic_requests.decode_params(pending.frame)
        trace = f"00-{pending.trace}-{secrets.token_hex(8)}-01"
        params["_meta"] = {FULFILS: fulfils, "traceparent": trace}
        payload = {"jsonrpc": "2.0", "id": envelope, "method": pending.method, "params": params}
        kind = str(parse_kind(pending.kind)._replace(family=REQUEST))
        heading = place.new_header(pending.proposal.target, done.proposal, envelope)
        if pending.server:
            self._fulfilments[envelope] = done
        try:
            inbox.send(heading, kind, payload)
        except MalformedMessage as error:
            self._notify_proposer(
                pending, "unsaid", f"the result cannot be sent: {error}; the call did not run"
            )
        else:
            self._record_fulfilment(pending, done.actor.party, fulfils)
        finally:
            self._fulfilments.pop(envelope, None)

    def take_fulfilment(self, envelope: str) -> ApprovedFulfilment | None:
        return self._fulfilments.pop(envelope, None)

    async def claim(
        self, managed_topic: ManagedTopic, envelope: Envelope, actor: Actor, server: str
    ) -> str:
        """Claim the fulfilment of a proposal for a member's request.

        Returns why the request is refused. Empty if it is the first fulfilment, or none.
        """
        step = managed_topic.room.trail.get(envelope.correlation_id)
        if step is None or not topic_requests.is_fulfilment(envelope.kind, step.kind):
            return ""
        frame = topic_requests.request_in(envelope)
        named = topic_requests.context_of(frame)
        if not self._policy.may_call(actor, str(frame.method), server, named):
            # The call pipeline refuses this call. Until then, another member may fulfil the
            # proposal.
            return ""
        pending = self._pending.get((managed_topic.topic, envelope.correlation_id))
        if pending is not None and pending.proposal.status is ProposalState.FULFILLED:
            by = pending.proposal.fulfilled_by
            self._record_repeat(managed_topic, envelope, by, AuditResult.BLOCKED)
            return _repeat_reason(by)
        if pending is None:
            ask = await self._approvals.store.find_latest(
                self._policy.digest(managed_topic.topic, envelope.correlation_id)
            )
        else:
            self._mark_fulfilled(pending, envelope.sender, envelope.id)
            ask = pending.ask
            self._record_fulfilment(pending, envelope.sender, {})
        if ask is None or ask.state in (AskState.DENIED, AskState.EXPIRED):
            return ""
        if await self._approvals.withdraw(ask, f"{envelope.sender} fulfils it"):
            return ""
        self._record_repeat(managed_topic, envelope, "another member", AuditResult.BLOCKED)
        return _repeat_reason("another member")

    def _record_fulfilment(
        self, pending: PendingProposal, by: str, basis: Mapping[str, object]
    ) -> None:
        """Record that a proposal is fulfilled on the basis of an approval or a grant."""
        if self._audit is None:
            return
        details = {
            "topic": pending.managed_topic.topic,
            "proposal": pending.proposal.id,
            "proposer": pending.proposal.proposer,
            "envelope": pending.proposal.fulfilment,
            **basis,
        }
        type = AuditType.PROPOSAL_FULFILLED
        self._audit.record(type, by, trace=pending.trace, details=details, if_room=True)

    def _record_repeat(
        self, managed_topic: ManagedTopic, envelope: Envelope, by: str, result: AuditResult
    ) -> None:
        """Record that a proposal is fulfilled again after `by` fulfilled it. (D-56)"""
        if self._audit is None:
            return
        details = {
            "topic": managed_topic.topic,
            "proposal": envelope.correlation_id,
            "envelope": envelope.id,
            "fulfilled_by": by,
        }
        type = AuditType.PROPOSAL_REPEATED
        self._audit.record(type, envelope.sender, result=result, details=details, if_room=True)

    def release(self, managed_topic: ManagedTopic, envelope: Envelope) -> None:
        """Release a fulfilment that was refused before it was sent, so that another may be the
        first.
        """
        pending = self._pending.get((managed_topic.topic, envelope.correlation_id))
        if pending is not None and pending.proposal.fulfilment == envelope.id:
            pending.proposal = replace(
                pending.proposal, status=ProposalState.PENDING, fulfilled_by="", fulfilment=""
            )
            pending.ask = None

    # Time and closed topics

    def look(self) -> None:
        """Retry what failed, and drop proposals that ended long ago."""
        due, self._retries = self._retries, {}
        for ask in due.values():
            self.on_approval_changed(ask)
        now = self._approvals.clock()
        for key, pending in list(self._pending.items()):
            if now - pending.proposal.expires_at > self._policy.lifetime:
                del self._pending[key]

    def on_topic_closed(self, managed_topic: ManagedTopic) -> None:
        """Drop the proposals of a topic that all members have left."""
        for pending in [
            each for each in self._pending.values() if each.managed_topic is managed_topic
        ]:
            del self._pending[pending.key]
            if pending.ask is not None and pending.ask.id in self._by_approval_id:
                del self._by_approval_id[pending.ask.id]
                self._background_tasks.start(self._withdraw(pending.ask))

    async def _withdraw(self, approval_request: ApprovalRequest) -> None:
        try:
            await self._approvals.withdraw(approval_request, "all members have left the topic")
        except Unavailable as error:
            log.info("Approval request %s could not be withdrawn: %s", approval_request.id, error)

    async def wait_until_idle(self) -> None:
        await self._background_tasks.finish()

    def stop(self) -> None:
        self._background_tasks.cancel()

    # Notices

    def _notify_proposer(
        self, pending: PendingProposal, notice: str, words: str, ask: str = ""
    ) -> None:
        proposal, more = pending.proposal, {"approval": ask} if ask else {}
        pending.managed_topic.notify(
            notice, words[:1000], (proposal.proposer,), proposal.id, **more
        )


def _repeat_reason(by: str) -> str:
    return f"this proposal was fulfilled by {by} already; a proposal runs only once"
