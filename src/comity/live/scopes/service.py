"""Checks the scope of calls before they leave, and answers `scope/elevate`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from comity.approvals import model
from comity.approvals.model import ApprovalDraft, ApprovalKind, ApprovalState
from comity.approvals.pending_calls import ApprovedCall, CallHold, PendingCall, PendingCalls
from comity.approvals.service import ApprovalService
from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditLog
from comity.catalog.access import ToolReviewStatus
from comity.errors import (
    ACCESS_DENIED,
    APPROVAL_REQUIRED,
    FEATURE_NOT_ENABLED,
    FEATURE_UNKNOWN,
    INVALID_TOOL_ARGS,
    TOOL_DISABLED,
    MalformedMessage,
)
from comity.gateway.era_bridge import BridgedCall
from comity.live.audit import LiveAuditEntry, record_entry
from comity.live.features import WHOLE, LivePolicy, feature_of_tool, feature_set_in
from comity.live.host import LiveHost, LiveMessage, LiveServer
from comity.live.scopes.rules import (
    check_claim,
    check_label,
    is_denied,
    normalize_label,
    scope_of,
    strictest_verdict,
    strings_at,
)
from comity.mcp import jsonrpc, mcpl
from comity.mcp.entries import CatalogEntry
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mcpl import ScopeClaim
from comity.mcp.mgp import format_timestamp
from comity.mcp.refusals import Refusal
from comity.policy.risk import SERVER_SUBJECT_PREFIX
from comity.sessions.calls import Call
from comity.validation.paths import PathVerdict

ANY_SET: Final = "*"
"""The key of the bounds for tools whose feature set has no bounds of its own."""

SCOPE_MEMBER: Final = "scope"
_MAX_SHOWN_LENGTH: Final = 300
_FALLBACK_REFUSAL: Final = Refusal(
    APPROVAL_REQUIRED, "a tool whose scope needs approval cannot be a fallback"
)


@dataclass(frozen=True, slots=True)
class OutOfScope:
    """A scope that a call would reach and that its feature set does not allow by itself."""

    feature: str
    scope: ScopeClaim


class ScopeService:
    """Checks the scope of calls and adds it to the calls that go to servers."""

    def __init__(
        self,
        live_host: LiveHost,
        policy_of: Callable[[str], LivePolicy],
        pending_calls: PendingCalls,
    ) -> None:
        self._live_host = live_host
        self._policy_of = policy_of
        self._pending_calls = pending_calls

    # Before a call leaves (`comity.gateway.pipeline.CallScopeChecker`).

    def applies_to(self, entry: CatalogEntry) -> bool:
        """Return whether calls of this tool have scopes or feature sets to check."""
        is_live = self._live_host.get(entry.server) is not None
        return is_live or bool(self._policy_of(entry.server).scope_of)

    def check_scope(
        self, call: Call, entry: CatalogEntry, arguments: object
    ) -> Refusal | OutOfScope | None:
        """Return a refusal, a scope that needs approval, or None if the call may go."""
        by, policy = self._live_host.get(entry.server), self._policy_of(entry.server)
        if by is None and not policy.scope_of:
            return None
        # This node knows only the tools of a server on another node. That node checks again.
        sets = None if by is None else by.declared.sets
        definition = entry.definition
        feature = feature_set_in(definition) if sets is None else feature_of_tool(definition, sets)
        if by is not None and feature != WHOLE and feature not in by.enabled:
            self._record_audit(call, entry, feature, "feature_not_enabled", AuditResult.BLOCKED)
            return Refusal(TOOL_DISABLED, _not_enabled_message(entry, feature))
        pointer = policy.scope_of.get(entry.name)
        if pointer is None:
            return self._check_unlocated_scope(by, policy, entry, feature, arguments)
        return self._check_scope(call, entry, (policy, feature, _is_scoped(by, feature)), arguments)

    def _check_unlocated_scope(
        self,
        live_server: LiveServer | None,
        policy: LivePolicy,
        entry: CatalogEntry,
        feature: str,
        arguments: object,
    ) -> OutOfScope | None:
        """Require approval for a scoped tool whose scope no JSON pointer locates."""
        if not _is_scoped(live_server, feature) and _bounds(policy, feature) is None:
            return None
        return OutOfScope(feature, ScopeClaim(entry.name, cast("Mapping[str, Any]", arguments)))

    def _check_scope(
        self,
        call: Call,
        entry: CatalogEntry,
        known: tuple[LivePolicy, str, bool],
        arguments: object,
    ) -> Refusal | OutOfScope | None:
        policy, feature, is_scoped = known
        bounds = _bounds(policy, feature)
        denied = [each for of_set in policy.scopes.values() for each in of_set.blacklist]
        if bounds is None and not is_scoped and not policy.scopes:
            return None
        pointer = policy.scope_of[entry.name]
        texts, scope = strings_at(arguments, pointer), scope_of(arguments, pointer)
        if scope is None:
            reason = f"{pointer} of the arguments must name the scope of the call"
            return Refusal(INVALID_TOOL_ARGS, reason)
        ruling = strictest_verdict(check_label(each, bounds, denied) for each in texts)
        if ruling is PathVerdict.DENIED:
            self._record_audit(call, entry, feature, ruling, AuditResult.BLOCKED, scope.label)
            reason = f"server {entry.server!r} may not reach {scope.label!r:.{_MAX_SHOWN_LENGTH}}"
            return Refusal(ACCESS_DENIED, reason)
        if ruling is PathVerdict.ALLOWED:
            self._record_audit(
                call, entry, feature, PathVerdict.ALLOWED, AuditResult.SUCCESS, scope.label
            )
            return None
        return OutOfScope(feature, scope)

    def describe(self, beyond: OutOfScope) -> Mapping[str, object]:
        """Return what an approver reads about a scope."""
        return describe_scope(beyond, self._pending_calls.redact)

    def hold(
        self,
        call: Call,
        entry: CatalogEntry,
        review: ToolReviewStatus,
        beyond: OutOfScope,
        frame: Frame,
    ) -> CallHold | Refusal:
        """Hold a call until a person approves the scope."""
        if isinstance(call, BridgedCall):
            return _FALLBACK_REFUSAL
        holding, actor = self._pending_calls, call.client_stream.actor
        label = f"{beyond.scope.label!r:.{_MAX_SHOWN_LENGTH}}"
        draft = ApprovalDraft(
            kind=ApprovalKind.SCOPE,
            asker=actor.party,
            server=entry.server,
            tool=entry.name,
            digest=digest_of(actor.party, entry.server, beyond, holding.key),
            message=str(holding.redact(f"{actor.party} wants {entry.key} to reach {label}")),
            about=describe_scope(beyond, holding.redact),
            own=holding.approvals.may_approve_own(actor),
            trace=call.ensure_trace_id(),
        )
        action = ApprovedCall(holding, call, entry, review, arguments_of(frame), beyond)
        return PendingCall(holding, call, frame, draft, action, definition=entry.definition)

    # With a call (`comity.live.host.CallInterceptor`).

    def has_data_for(self, live_server: LiveServer, call: Call, frame: Frame) -> bool:
        if frame.params is UNSET:
            return False
        # A scope that the client sets itself is untrusted, so `add_data` removes it.
        return bool(live_server.policy.scope_of) or b'"scope"' in bytes(frame.params)

    async def add_data(self, live_server: LiveServer, call: Call, frame: Frame) -> Frame:
        params = frame.parameters
        pointer = live_server.policy.scope_of.get(jsonrpc.decode_text(params.get("name")) or "")
        raw = params.get("arguments")
        scope = None
        if pointer is not None and raw is not None:
            scope = scope_of(jsonrpc.decode_value(raw), pointer)
        kept: dict[str, object] = {n: each for n, each in params.items() if n != SCOPE_MEMBER}
        if scope is not None:
            kept[SCOPE_MEMBER] = mcpl.scope_on_wire(scope)
        return jsonrpc.with_params(frame, jsonrpc.to_raw(kept))

    async def take_data(self, live_server: LiveServer, call: Call, frame: Frame) -> Frame:
        return frame

    def _record_audit(
        self,
        call: Call,
        entry: CatalogEntry,
        feature: str,
        outcome: str,
        result: AuditResult,
        label: str = "",
    ) -> None:
        details = {"label": label[:_MAX_SHOWN_LENGTH]} if label else {}
        deed = LiveAuditEntry(
            entry.server,
            call.method,
            feature,
            "",
            outcome,
            call.client_stream.actor.party,
            tool=entry.name,
            trace=call.ensure_trace_id(),
            details=details,
        )
        record_entry(self._live_host.audit, AuditType.SCOPE_DECIDED, deed, result, is_limited=True)


@dataclass(frozen=True, slots=True)
class ScopeDenyList:
    """The check of calls from other nodes, which have already passed approval there."""

    scopes: ScopeService

    def applies_to(self, entry: CatalogEntry) -> bool:
        return self.scopes.applies_to(entry)

    def check_scope(self, call: Call, entry: CatalogEntry, arguments: object) -> Refusal | None:
        found = self.scopes.check_scope(call, entry, arguments)
        return found if isinstance(found, Refusal) else None

    def describe(self, beyond: object) -> Mapping[str, object]:
        return {}

    def hold(
        self,
        call: Call,
        entry: CatalogEntry,
        review: ToolReviewStatus,
        beyond: object,
        frame: Frame,
    ) -> Refusal:
        return _FALLBACK_REFUSAL


def digest_of(party: str, server: str, out_of_scope: OutOfScope, key: bytes) -> str:
    """Return the digest that an approval is bound to. (D-62)"""
    scope = [out_of_scope.scope.label, dict(out_of_scope.scope.payload)]
    return model.call_digest(party, server, f"scope of {out_of_scope.feature}", "", scope, key)


def describe_scope(
    out_of_scope: OutOfScope, redact: Callable[[object], object]
) -> dict[str, object]:
    """Return the details that an approver reads."""
    return {
        "feature_set": out_of_scope.feature,
        "label": redact(out_of_scope.scope.label),
        "payload": redact(dict(out_of_scope.scope.payload)),
    }


def arguments_of(frame: Frame) -> object:
    raw = frame.parameters.get("arguments")
    try:
        return {} if raw is None else jsonrpc.decode_value(raw)
    except MalformedMessage:
        return {}


def _is_scoped(live_server: LiveServer | None, feature: str) -> bool:
    found = None if live_server is None else live_server.declared.sets.get(feature)
    return found is not None and found.is_scoped


def _bounds(policy: LivePolicy, feature: str) -> mcpl.ScopeBounds | None:
    return policy.scopes.get(feature) or policy.scopes.get(ANY_SET)


def _not_enabled_message(entry: CatalogEntry, feature: str) -> str:
    return (
        f"{entry.key} belongs to the feature set {feature} of server {entry.server}, which is not "
        "enabled; an operator can enable it in [servers.live], or by "
        f"`comity servers features enable {entry.server} {feature}`"
    )


SCOPE_ENRICHMENT_KEY: Final = "dev.comity/scope"
"""The member that Comity adds to a payload.

It holds the normalized label, the id of the channel with that label, and the end of the approval.
"""

type ChannelLookup = Callable[[str, str], str | None]
"""Returns the id of the server's channel with this label. None unless exactly one matches."""


class ScopeElevation:
    """Answers `scope/elevate`."""

    def __init__(
        self,
        approvals: ApprovalService,
        audit: AuditLog | None,
        redact: Callable[[object], object],
        key: bytes,
        channel_of: ChannelLookup = lambda server, label: None,
    ) -> None:
        self._approvals = approvals
        self._audit = audit
        self._redact = redact
        self._key = key
        self._channel_of = channel_of

    async def answer(self, message: LiveMessage) -> Mapping[str, object]:
        name, scope = mcpl.elevation_in(message.params)
        by = message.live_server
        if name not in by.declared.sets:
            raise MalformedMessage("Unknown feature set", FEATURE_UNKNOWN)
        if name not in by.enabled:
            raise MalformedMessage("Feature set not enabled", FEATURE_NOT_ENABLED)
        bounds = by.policy.scopes.get(name) or by.policy.scopes.get(ANY_SET)
        channel = self._channel_of(by.server, scope.label)
        ruling = check_claim(scope, bounds)
        if channel is not None and bounds is not None and is_denied(channel, bounds.blacklist):
            ruling = PathVerdict.DENIED
        if ruling is PathVerdict.OUTSIDE:
            return await self._request_approval(by.server, OutOfScope(name, scope))
        self._record_audit(
            by.server, OutOfScope(name, scope), ruling, ruling is PathVerdict.ALLOWED
        )
        if ruling is PathVerdict.DENIED:
            return {"approved": False, "reason": "this scope is denied to the feature set"}
        return {"approved": True, "payload": enrich_payload(scope, channel=channel)}

    async def _request_approval(
        self, server: str, out_of_scope: OutOfScope
    ) -> Mapping[str, object]:
        ask = await self._approvals.wait(
            await self._approvals.request(self._draft(server, out_of_scope))
        )
        is_allowed = ask.state is ApprovalState.APPROVED
        self._record_audit(server, out_of_scope, str(ask.state), is_allowed)
        if is_allowed:
            channel = self._channel_of(server, out_of_scope.scope.label)
            told = enrich_payload(out_of_scope.scope, ask.expires_at, channel)
            return {"approved": True, "payload": told}
        said = next((each.reason for each in reversed(ask.answers) if each.reason), "")
        return {"approved": False, "reason": said or f"it was not approved: {ask.state}"}

    def _draft(self, server: str, out_of_scope: OutOfScope) -> ApprovalDraft:
        asker, label = (
            SERVER_SUBJECT_PREFIX + server,
            f"{out_of_scope.scope.label!r:.{_MAX_SHOWN_LENGTH}}",
        )
        message = f"server {server} wants to reach {label} with {out_of_scope.feature}"
        return ApprovalDraft(
            kind=ApprovalKind.SCOPE,
            asker=asker,
            server=server,
            digest=digest_of(asker, server, out_of_scope, self._key),
            message=str(self._redact(message)),
            about=describe_scope(out_of_scope, self._redact),
        )

    def _record_audit(
        self, server: str, out_of_scope: OutOfScope, outcome: str, is_allowed: bool
    ) -> None:
        details = {"label": out_of_scope.scope.label[:_MAX_SHOWN_LENGTH]}
        deed = LiveAuditEntry(
            server, mcpl.ELEVATE, out_of_scope.feature, outcome=outcome, details=details
        )
        result = AuditResult.SUCCESS if is_allowed else AuditResult.BLOCKED
        record_entry(self._audit, AuditType.SCOPE_DECIDED, deed, result, is_limited=True)


def enrich_payload(
    scope: ScopeClaim, until: datetime | None = None, channel: str | None = None
) -> dict[str, object]:
    """Return the payload with the normalized label, the expiry and the channel. (§7.5)"""
    ours = {"label": normalize_label(scope.label)}
    if until is not None:
        ours["until"] = format_timestamp(until)
    if channel is not None:
        ours["channelId"] = channel
    return {**scope.payload, SCOPE_ENRICHMENT_KEY: ours}
