"""Records in the audit log how API keys and their principals change."""

from datetime import datetime

from comity.kernel.audit_recorder import MOST_NAMED, AuditRecorder
from comity.wire.audit import Type, stamp
from comity.wire.parties import Key, Party


class KeyAudit:
    """Records changes of keys and principals."""

    def __init__(self, recorder: AuditRecorder) -> None:
        self._recorder = recorder

    def issued(self, by: str, key: Key, replaces: str = "") -> None:
        details: dict[str, object] = {
            "key": key.id,
            "party": key.party,
            "label": self._recorder.redact(key.label),
            "permissions": list(key.permissions[:MOST_NAMED]),
            "expires_at": None if key.expires_at is None else stamp(key.expires_at),
        }
        if replaces:
            details["replaces"] = replaces
        self._recorder.note(Type.KEY_ISSUED, by, details=details)

    def revoked(self, by: str, key: Key, counts_until: datetime | None = None) -> None:
        """A key counts no more, or for some time only."""
        details: dict[str, object] = {"key": key.id, "party": key.party}
        if counts_until is not None:
            details["counts_until"] = stamp(counts_until)
        self._recorder.note(Type.KEY_REVOKED, by, details=details)

    def party_changed(self, by: str, party: Party, change: str) -> None:
        details = {"party": party.id, "kind": party.kind, "change": change}
        self._recorder.note(Type.PARTY_CHANGED, by, details=details)
