"""Audit events about live servers, written by every part of `comity.live`."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditFacts, AuditLog
from comity.policy.risk import SERVER_SUBJECT_PREFIX
from comity.storage.values import clean_words

OK: Final = "ok"
_MAX_WORD_LENGTH: Final = 200
_NO_DETAILS: Final[Mapping[str, object]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LiveAuditEntry:
    """An action of a live server or on it. An empty `by` means the server itself."""

    server: str
    method: str = ""
    feature: str = ""
    inference: str = ""
    outcome: str = OK
    by: str = ""
    tool: str = ""
    trace: str = ""
    # These may contain text from the server.
    details: Mapping[str, object] = _NO_DETAILS


def record_entry(
    audit: AuditLog | None,
    type: AuditType,
    entry: LiveAuditEntry,
    result: AuditResult = AuditResult.SUCCESS,
    *,
    is_limited: bool = False,
) -> None:
    """Record an entry. Set `is_limited` for events that a server can cause at will."""
    if audit is None:
        return
    words = {
        "method": entry.method,
        "feature_set": entry.feature,
        "inference_id": entry.inference,
        "outcome": entry.outcome,
    }
    facts = AuditFacts(
        server=entry.server,
        tool=entry.tool,
        result=result,
        trace=entry.trace,
        details={
            name: clean_words(word[:_MAX_WORD_LENGTH]) for name, word in words.items() if word
        },
    )
    audit.record(
        type,
        entry.by or SERVER_SUBJECT_PREFIX + entry.server,
        rate_key=entry.server if is_limited else "",
        if_room=is_limited,
        untrusted=entry.details,
        **facts,
    )
