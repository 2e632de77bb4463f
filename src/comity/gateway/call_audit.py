"""Records calls in the audit log, each as its class says."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from comity.approvals.model import arguments_digest
from comity.audit.deciders import DECIDED_BY, DeciderKind
from comity.audit.events import AuditEvent, AuditResult, AuditType
from comity.audit.log import RETRY_AFTER, AuditLog
from comity.catalog.access import ToolReviewStatus
from comity.errors import (
    AUDIT_LOG_AWAY,
    CODE_UNSAFE,
    CUT_OFF,
    INTERRUPTED,
    INVALID_TOOL_ARGS,
    TIMEOUT,
    UNAUTHENTICATED,
    UPSTREAM_DOWN,
    UPSTREAM_FAILED,
    UPSTREAM_SLOW,
    VALIDATION_BLOCKED,
    Fault,
    Unavailable,
)
from comity.mcp import protocol
from comity.mcp.entries import CatalogEntry
from comity.mcp.refusals import Refusal
from comity.policy.risk import Risk
from comity.redaction.secrets import without_secrets
from comity.sessions.calls import HIDING_FAULTS, Call, CallDenial
from comity.telemetry.metrics import name_in
from comity.telemetry.outcomes import CANCELLED, NOT_RUN, OK
from comity.validation.rules import CODE_SAFETY

MAX_CACHED_TOOLS: Final = 10_000
RECORDED_METHODS: Final = frozenset(
    {protocol.CALL_TOOL, protocol.READ_RESOURCE, protocol.GET_PROMPT}
)
_TYPE_BY_FAULT: Final[Mapping[Fault, AuditType]] = {
    VALIDATION_BLOCKED: AuditType.VALIDATION_FAILED,
    INVALID_TOOL_ARGS: AuditType.VALIDATION_FAILED,
    CODE_UNSAFE: AuditType.CODE_REJECTED,
}
_UNCERTAIN_FAULTS: Final = frozenset(
    {INTERRUPTED, TIMEOUT, UPSTREAM_FAILED, UPSTREAM_SLOW, UPSTREAM_DOWN, CUT_OFF, UNAUTHENTICATED}
)
"""The faults after which a call that was sent may have run. A call that is under way is refused as
unauthenticated when its key is revoked."""
_QUEUE_FULL_REFUSAL: Final = Refusal(
    AUDIT_LOG_AWAY, "the queue of the audit log is full; nothing was done", RETRY_AFTER
)

_INTENT_KIND: Final = (AuditType.CALL_INTENDED, AuditResult.PENDING)
_SUCCESS_KIND: Final = (AuditType.TOOL_EXECUTED, AuditResult.SUCCESS)
_WITHDRAWN_REFUSAL: Final = Refusal(TIMEOUT, "the client withdrew its call before it left")

type Known = Callable[[str, str], tuple[Risk, Sequence[str]] | None]


def _unknown_tool(server: str, tool: str) -> None:
    """Return None, which means an unknown tool."""


class AuditClass(StrEnum):
    """When the entries of a call are on disk.

    A deferred call has one entry, its outcome, which is on disk within a moment. A durable call has
    two: the intent is on disk before the call is sent, and the outcome before the client has the
    answer. A call without entries is one that the gateway sent; its refusals are always recorded.
    """

    OFF = "off"
    DEFERRED = "deferred"
    DURABLE = "durable"


DEFAULT_CLASSES: Final[Mapping[Risk, AuditClass]] = {
    Risk.SAFE: AuditClass.DEFERRED,
    Risk.MODERATE: AuditClass.DEFERRED,
    Risk.DANGEROUS: AuditClass.DURABLE,
}


class ArgumentAuditLevel(StrEnum):
    """For which calls the log holds the arguments, without secrets. It holds all digests."""

    NONE = "none"
    RISKY = "risky"
    ALL = "all"


_SAFE_LEVELS: Final = (ArgumentAuditLevel.ALL,)
_RISKY_LEVELS: Final = (ArgumentAuditLevel.RISKY, ArgumentAuditLevel.ALL)


class CallRecord(Struct):
    """The audit record of a call that may be sent."""

    id: str
    server: str
    tool: str
    audit_class: AuditClass
    details: dict[str, object]
    was_sent: bool = False


class _ToolFacts(Struct):
    """The facts that all calls of a tool share, until its review changes."""

    review: ToolReviewStatus
    audit_class: AuditClass
    is_risky: bool
    details: dict[str, object]


class CallAudit:
    """Records each call as its class says: its intent, its retries and its outcome."""

    def __init__(
        self,
        audit_log: AuditLog,
        arguments: ArgumentAuditLevel,
        key: bytes = b"",
        *,
        classes: Mapping[Risk, AuditClass] = DEFAULT_CLASSES,
        known_tool: Known | None = None,
        must_await: Callable[[AuditEvent], bool] = lambda _: False,
    ) -> None:
        self._audit_log = audit_log
        self._arguments = arguments
        # Digests are keyed: without the key, an argument cannot be guessed from its digest.
        self._key = key
        self._classes = classes
        # The risk of a tool and its validators, if they are known.
        self._known_tool = known_tool or _unknown_tool
        # Called for each call that is sent; None while there is no subscriber.
        self.on_call_sent: Callable[[AuditEvent], None] | None = None
        # Whether a durable subscription needs the event: then it is durable before the answer.
        self._must_await = must_await
        self._tools: dict[tuple[str, str], _ToolFacts] = {}
        self._run_name = ""
        self._call_count = 0

    def set_run_name(self, name: str) -> None:
        """Set the name of this run, which begins the id of each call."""
        self._run_name = name

    def record_intent(
        self, call: Call, entry: CatalogEntry, review: ToolReviewStatus, arguments: object
    ) -> Refusal | Awaitable[Refusal | None] | None:
        """Begin the record of a call. A durable intent is on disk before the call is sent."""
        tool = self._tools.get((entry.server, entry.name))
        if tool is None or tool.review is not review:
            tool = self._add_tool(entry, review)
        audit_log, details = self._audit_log, dict[str, object]()
        # A call that a person approved runs at most once, however harmless it is.
        audit_class = AuditClass.DURABLE if call.permitted_by else tool.audit_class
        if audit_class is not AuditClass.OFF:
            if audit_log.uncommitted_count >= audit_log.most_waiting:
                return _QUEUE_FULL_REFUSAL
            details = tool.details.copy()
            is_risky = tool.is_risky or bool(call.permitted_by)
            details["arguments_digest"] = arguments_digest(arguments, self._key)
            if self._arguments in (_RISKY_LEVELS if is_risky else _SAFE_LEVELS):
                details["arguments"] = audit_log.redact(arguments)
            if is_risky and call.decision is not None and call.decision.grant is not None:
                # The timeline of a call names the grant that allowed it.
                grant = call.decision.grant
                details["grant"] = f"{grant.effect} {grant.subject} {grant.verb} {grant.target}"
        self._call_count += 1
        name = f"{self._run_name}-{self._call_count:x}"
        record = CallRecord(name, entry.server, entry.name, audit_class, details)
        call.record = record
        if audit_class is AuditClass.DURABLE:
            if audit_log.is_durable:
                return self._await_durable(call, record)
            audit_log.enqueue(self._make_event(call, record, _INTENT_KIND, details))
        record.was_sent = True
        if self.on_call_sent is not None:
            self.on_call_sent(self._make_event(call, record, _INTENT_KIND, {}))
        return None

    def _add_tool(self, entry: CatalogEntry, review: ToolReviewStatus) -> _ToolFacts:
        place, risk = (entry.server, entry.name), review.risk
        details = {**_mgp_details(self._known_tool(*place)), "risk_level": risk}
        if len(self._tools) >= MAX_CACHED_TOOLS:
            self._tools.clear()
        tool = _ToolFacts(review, self._classes[risk], risk is not Risk.SAFE, details)
        self._tools[place] = tool
        return tool

    def record_not_sent(self, call: Call, reason: str) -> None:
        """Record that a call was not sent after its intent; the call starts over."""
        record, call.record = call.record, None
        if isinstance(record, CallRecord) and record.audit_class is AuditClass.DURABLE:
            said = {"outcome": NOT_RUN, "reason": reason}
            self._audit_log.enqueue(
                self._make_event(call, record, (AuditType.TOOL_BLOCKED, AuditResult.BLOCKED), said)
            )

    async def _await_durable(self, call: Call, record: CallRecord) -> Refusal | None:
        event = self._make_event(call, record, _INTENT_KIND, record.details)
        was_over = call.is_recorded
        try:
            await self._audit_log.insist(event)
        except Unavailable as error:
            return Refusal(error.fault, str(error), error.retry_after)
        if call.is_recorded:
            # The client cancelled it meanwhile. Its intent must not look like a call that ran. An
            # outcome that was recorded since then ends this intent already.
            if was_over:
                ended = (AuditType.TOOL_BLOCKED, AuditResult.BLOCKED)
                said = {"outcome": CANCELLED}
                self._audit_log.enqueue(self._make_event(call, record, ended, said))
            return _WITHDRAWN_REFUSAL
        record.was_sent = True
        if self.on_call_sent is not None:
            self.on_call_sent(self._make_event(call, record, _INTENT_KIND, {}))
        return None

    def record_outcome(
        self, call: Call, outcome: str, refusal: Refusal | None, reply: Callable[[], None]
    ) -> None:
        """Record the outcome of a call, and send its answer once that is durable if it must be."""
        record = call.record if isinstance(call.record, CallRecord) else None
        audit_class = AuditClass.DEFERRED if record is None else record.audit_class
        if call.method not in RECORDED_METHODS or call.is_recorded:
            reply()
            return
        call.is_recorded = True
        if audit_class is AuditClass.OFF:
            reply()
            return
        event = self._outcome_event(call, record, outcome, refusal)
        audit_log = self._audit_log
        if (
            audit_class is AuditClass.DURABLE
            and audit_log.is_durable
            and record is not None
            and record.was_sent
        ):
            audit_log.write(event).add_done_callback(lambda _: reply())
        elif self._must_await(event):
            audit_log.insist(event).add_done_callback(lambda kept: _reply_when_durable(kept, reply))
        else:
            audit_log.enqueue(event)
            reply()

    def _outcome_event(
        self, call: Call, record: CallRecord | None, outcome: str, refusal: Refusal | None
    ) -> AuditEvent:
        if record is None:
            details = {} if call.target is None else _mgp_details(self._known_tool(*call.target))
        elif record.audit_class is AuditClass.DURABLE:
            # The intent may not be encoded yet.
            details = record.details.copy()
        else:
            details = record.details
        details["outcome"] = outcome
        if call.active_calls is not None:
            details["duration_ms"] = round((call.active_calls.now() - call.started_at) * 1000, 3)
        if call.stream is not None:
            details |= call.stream.summary()
        if refusal is None and outcome == OK and call.method == protocol.CALL_TOOL:
            kind = _SUCCESS_KIND
        else:
            has_left = record is not None and record.was_sent
            kind = _outcome_kind(call, outcome, refusal, has_left=has_left)
            if refusal is not None:
                details |= _validator_details(refusal)
                details["reason"] = self._audit_log.redact(refusal.reason)
                if call.denial is not None and refusal.fault in HIDING_FAULTS:
                    details[DECIDED_BY] = self._audit_log.redact(_decider_of(call.denial))
            is_uncertain = refusal is not None and refusal.fault in _UNCERTAIN_FAULTS
            if has_left and (outcome == CANCELLED or is_uncertain):
                details["outcome_known"] = False
        return self._make_event(call, record, kind, details)

    def record_retry(self, call: Call, attempt: int, reason: str) -> None:
        """Record that a call is sent again."""
        record = call.record if isinstance(call.record, CallRecord) else None
        if record is None or record.audit_class is not AuditClass.OFF:
            said = {"attempt": attempt, "reason": reason}
            self._audit_log.enqueue(
                self._make_event(call, record, (AuditType.CALL_RETRIED, AuditResult.PENDING), said)
            )

    def _make_event(
        self,
        call: Call,
        record: CallRecord | None,
        kind: tuple[AuditType, AuditResult],
        details: Mapping[str, object],
    ) -> AuditEvent:
        actor = call.client_stream.actor
        server, tool = target_of(call) if record is None else (record.server, record.tool)
        if call.permitted_by:
            # The approval that the call consumed, or the grant that answered for it.
            details = {**details, "answered_by": call.permitted_by}
        if call.account_owner is not None:
            details = {**details, "account": call.account_owner or "shared"}
        if call.view:
            details = {**details, "view": call.view}
        return AuditEvent(
            kind[0],
            actor.party,
            self._audit_log.clock(),
            actor.kind,
            server,
            tool,
            kind[1],
            call.trace or call.ensure_trace_id(),
            "" if record is None else record.id,
            details,
        )


def _reply_when_durable(kept: asyncio.Future[None], reply: Callable[[], None]) -> None:
    """Answer a call that has run, even if its outcome could not be committed."""
    kept.exception()
    reply()


def _outcome_kind(
    call: Call, outcome: str, refusal: Refusal | None, *, has_left: bool
) -> tuple[AuditType, AuditResult]:
    """Return the event of a call that is no tool call, or a tool call without success."""
    if call.method != protocol.CALL_TOOL:
        failed = (
            AuditResult.BLOCKED
            if refusal is not None and call.connection is None
            else AuditResult.FAILURE
        )
        return AuditType.CATALOG_ENTRY_USED, AuditResult.SUCCESS if outcome == OK else failed
    if refusal is not None and not (has_left and refusal.fault in _UNCERTAIN_FAULTS):
        return _TYPE_BY_FAULT.get(refusal.fault, AuditType.TOOL_BLOCKED), AuditResult.BLOCKED
    if outcome == CANCELLED and not has_left:
        return AuditType.TOOL_BLOCKED, AuditResult.BLOCKED
    return AuditType.TOOL_EXECUTED, AuditResult.FAILURE


def _mgp_details(known: tuple[Risk, Sequence[str]] | None) -> dict[str, object]:
    """The details of a call that MGP §6.3 names."""
    if known is None:
        return {}
    risk, validators = known
    applied = {"validator_applied": ", ".join(validators)} if validators else {}
    return {"risk_level": risk, **applied}


def _decider_of(denial: CallDenial) -> dict[str, object]:
    """Describe by which entry of the policy a call was denied."""
    decision, said = denial.decision, {"server": denial.server, "tool": denial.name}
    if (rule := decision.guardrail) is not None:
        entry = f"deny {rule.subject} {rule.verb} {rule.target}"
        return {"kind": DeciderKind.GUARDRAIL, "entry": entry, "why": rule.why, **said}
    if (grant := decision.grant) is not None:
        entry = f"{grant.effect} {grant.subject} {grant.verb} {grant.target}"
        about = {"entry": entry, "why": grant.justification, "by": grant.granted_by}
        return {"kind": DeciderKind.GRANT, **about, **said}
    if not decision.is_default:
        return {"kind": DeciderKind.CREDENTIAL, **said}
    return {"kind": DeciderKind.DEFAULT if denial.is_listed else DeciderKind.NOTHING, **said}


def _validator_details(refusal: Refusal) -> dict[str, object]:
    """The validator that refused, if one did."""
    named = CODE_SAFETY if refusal.fault is CODE_UNSAFE else refusal.details.get("validator")
    return {} if named is None else {"validator_applied": named}


def target_of(call: Call) -> tuple[str, str]:
    """Return the server and the tool of a call, as far as they are known."""
    if call.target is not None:
        return call.target
    server = "" if call.counters is None else call.counters.server
    # The client chose this name. It may be a URI that holds a secret.
    return server, without_secrets((call.tool or name_in(call.params))[:1000])[:200]
