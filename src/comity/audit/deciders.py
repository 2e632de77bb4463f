"""The outcome of a call in its audit entry, and the rule or person that decided it.

Both follow from the stored entry, so entries of older versions have them too. Only new entries name
the grant or guardrail, in a detail that only readers of the audit log may see.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TypedDict, cast

from msgspec.structs import replace

from comity import errors
from comity.audit.events import AuditEvent, AuditResult, AuditType
from comity.telemetry.outcomes import OutcomeClass, class_of

DECIDED_BY: Final = "decided_by"
"""The detail with the entry of the policy that denied a call."""

_CALL_ENDS: Final = frozenset(
    {
        AuditType.TOOL_EXECUTED,
        AuditType.TOOL_BLOCKED,
        AuditType.VALIDATION_FAILED,
        AuditType.CODE_REJECTED,
        AuditType.CATALOG_ENTRY_USED,
    }
)


class DeciderKind(StrEnum):
    """The kind of rule that denied or withheld a call.

    `nothing` is for a name that no connected server lists.
    """

    GRANT = "grant"
    GUARDRAIL = "guardrail"
    CREDENTIAL = "credential"
    DEFAULT = "default"
    NOTHING = "nothing"
    LIMIT = "limit"
    REVIEW = "review"
    PERMISSION = "permission"
    VALIDATOR = "validator"
    APPROVAL = "approval"


class DeciderView(TypedDict):
    """The rule or person that stopped a call, in words, and the catalog entry it decided about.

    `entry` is a grant or a guardrail as commands write it, and `why` its justification.
    """

    kind: DeciderKind
    text: str
    entry: str | None
    why: str | None
    by: str | None
    server: str
    tool: str


_KIND_BY_OUTCOME: Final[Mapping[str, DeciderKind]] = {
    errors.RATE_LIMITED.error_type: DeciderKind.LIMIT,
    errors.QUOTA_EXCEEDED.error_type: DeciderKind.LIMIT,
    errors.TOOL_DISABLED.error_type: DeciderKind.REVIEW,
    errors.PERMISSION_DENIED.error_type: DeciderKind.PERMISSION,
    errors.VALIDATION_BLOCKED.error_type: DeciderKind.VALIDATOR,
    errors.INVALID_TOOL_ARGS.error_type: DeciderKind.VALIDATOR,
    errors.CODE_UNSAFE.error_type: DeciderKind.VALIDATOR,
    errors.DECLINED.error_type: DeciderKind.APPROVAL,
    errors.APPROVAL_REQUIRED.error_type: DeciderKind.APPROVAL,
}
_TEXT_BY_KIND: Final[Mapping[DeciderKind, str]] = {
    DeciderKind.GRANT: "a grant",
    DeciderKind.GUARDRAIL: "a guardrail, which no grant overrides",
    DeciderKind.CREDENTIAL: "the bounds of the key or token, which do not include this",
    DeciderKind.DEFAULT: "the default policy: no grant allows this",
    DeciderKind.NOTHING: "no connected server lists this name, and no grant allows it",
    DeciderKind.LIMIT: "a limit",
    DeciderKind.REVIEW: "the review of the tool definition",
    DeciderKind.PERMISSION: "a permission that the server lacks",
    DeciderKind.VALIDATOR: "the check of the arguments",
    DeciderKind.APPROVAL: "the approval request",
}


def results_of_outcome(outcome: OutcomeClass) -> tuple[AuditResult, ...]:
    """Return the results that the entries of calls with this outcome can have."""
    if outcome is OutcomeClass.DONE:
        return (AuditResult.SUCCESS,)
    return AuditResult.BLOCKED, AuditResult.FAILURE


def outcome_of_event(event: AuditEvent) -> OutcomeClass | None:
    """Return the class of a call's outcome, or None if the entry is not the end of a call."""
    if event.type not in _CALL_ENDS:
        return None
    if event.result == AuditResult.SUCCESS:
        return OutcomeClass.DONE
    if _member(_decision_in(event), "kind") == DeciderKind.NOTHING:
        return OutcomeClass.UNKNOWN
    if event.details.get(DECIDED_BY) is not None:
        return OutcomeClass.DENIED
    return class_of(str(event.details.get("outcome", "")))


def decider_of(event: AuditEvent) -> DeciderView | None:
    """Return what denied or withheld the call of an entry, if that is known."""
    if event.type not in _CALL_ENDS or event.result == AuditResult.SUCCESS:
        return None
    decision = _decision_in(event)
    said = _member(decision, "kind")
    if said in tuple(DeciderKind):
        kind = DeciderKind(said)
    else:
        found = _KIND_BY_OUTCOME.get(str(event.details.get("outcome", "")))
        if found is None:
            return None
        kind = found
    return {
        "kind": kind,
        "text": _TEXT_BY_KIND[kind],
        "entry": _member(decision, "entry") or None,
        "why": _member(decision, "why") or _reason_in(event, kind),
        "by": _member(decision, "by") or None,
        "server": _member(decision, "server") or event.server,
        "tool": _member(decision, "tool") or event.tool,
    }


def decider_text(view: DeciderView) -> str:
    """Describe in one sentence what decided."""
    entry = f" `{view['entry']}`" if view["entry"] else ""
    by = f", by {view['by']}" if view["by"] else ""
    why = f": {view['why']}" if view["entry"] and view["why"] else ""
    return f"decided by {view['text']}{entry}{by}{why}"


def without_decider(event: AuditEvent) -> AuditEvent:
    """Return an event for a reader who may not know the rules, such as the caller itself."""
    if DECIDED_BY not in event.details:
        return event
    details = {name: said for name, said in event.details.items() if name != DECIDED_BY}
    return replace(event, details=details)


def _decision_in(event: AuditEvent) -> Mapping[str, Any]:
    found = event.details.get(DECIDED_BY)
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _member(decision: Mapping[str, Any], name: str) -> str:
    found = decision.get(name)
    return found if isinstance(found, str) else ""


def _reason_in(event: AuditEvent, kind: DeciderKind) -> str | None:
    # The reason of a denial only says that nothing is there, which would mislead an operator.
    if kind in (DeciderKind.GRANT, DeciderKind.GUARDRAIL, DeciderKind.CREDENTIAL):
        return None
    if kind in (DeciderKind.DEFAULT, DeciderKind.NOTHING):
        return None
    found = event.details.get("reason")
    return found if isinstance(found, str) else None
